"""Samples a second of the trainer's loader, from S3, against WebDataset and a plain memory map on local files.

The same tokens lie as shards in an S3 server on loopback (versitygw over a folder), as tar files for WebDataset, and as
one file for the memory map, which draws windows as nanoGPT does. Each takes samples to micro-batches of (tokens,
successors), int64. With `--images` the same pictures are held against WebDataset alone.

`ratio`: ours with the node's cache warm over the faster of the others, whose files are in memory too; medians of rounds
in alternating order. `cold`: ours with an empty cache, a whole epoch. `data_wait`: the share of the trainer's own steps
in which it waits for its data, by its own account, as it trains 10 million parameters from S3 on this machine.
"""

import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import boto3
import numpy as np
import torch
import typer
import webdataset
from torch import Tensor
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a file, it finds the rooms
from benchmarks.options import AsJson, Server
from benchmarks.s3_server import BUCKET, NoServer, find, serving, version
from benchmarks.trainer import WARM_UP, job, lines_of
from trainer.data import Data, open_data
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.models.dataset import INDEX, ImageDataset, Shard, TokenDataset

LENGTH, MICRO_BATCH, SHARDS, SAMPLES = 1024, 16, 16, 1000  # tokens; samples; shards; samples of a shard
VOCABULARY = 32_000
PICTURES, PICTURE_SHARDS, SIDE = 100, 4, 224
ROUNDS, STEPS = 7, 20
TRAINED: dict[str, Any] = {"micro": 4, "length": 256}  # samples and tokens of what the trainer takes at once
SECONDS = 0.5  # of one measurement, at least
Batches = Iterator[tuple[Tensor, ...]]


def _upload(prefix: str, files: dict[str, bytes], index: TokenDataset | ImageDataset) -> str:
    client = boto3.Session().client("s3")
    for key, content in {**files, INDEX: index.model_dump_json().encode()}.items():
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=content)
    return f"s3://{BUCKET}/{prefix}"


def _shard(key: str, content: bytes, count: int) -> Shard:
    return Shard(key=key, count=count, bytes=len(content), sha256=sha256(content).hexdigest())


def write_tokens(folder: Path) -> str:
    """The tokens in all three forms; the URI of ours."""
    generator = np.random.default_rng(0)
    files: dict[str, bytes] = {}
    with (folder / "tokens.bin").open("wb") as whole:
        for number in range(SHARDS + 1):
            tokens = generator.integers(0, VOCABULARY, SAMPLES * LENGTH + 1, dtype=np.uint16)
            files[f"{number:04}.bin"] = tokens.tobytes()
            if number < SHARDS:
                whole.write(tokens.tobytes())
                windows = (tokens[at * LENGTH : (at + 1) * LENGTH + 1].tobytes() for at in range(SAMPLES))
                _write_tar(folder / f"{number:04}.tar", ({"tokens": window} for window in windows))
    shards = tuple(_shard(key, content, len(content) // 2) for key, content in files.items())
    given: dict[str, Any] = {"dtype": "uint16", "vocabulary": VOCABULARY, "validation": shards[-1:]}
    return _upload("tokens", files, TokenDataset(name="random", source="noise", train=shards[:-1], **given))


def write_images(folder: Path) -> str:
    from PIL import Image

    generator = np.random.default_rng(0)
    files: dict[str, bytes] = {}
    for number in range(PICTURE_SHARDS):
        samples = []
        for at in range(PICTURES):
            picture = io.BytesIO()
            small = generator.integers(0, 255, (32, 40, 3)).astype(np.uint8)  # enlarged: as large a file as a photo's
            Image.fromarray(small).resize((500, 400)).save(picture, "JPEG", quality=90)
            samples.append({"jpg": picture.getvalue(), "cls": b"%d" % (at % 10)})
        path = folder / f"{number:04}.tar"
        _write_tar(path, iter(samples))
        files[path.name] = path.read_bytes()
    shards = tuple(_shard(key, content, PICTURES) for key, content in files.items())
    classes = tuple("abcdefghij")
    index = ImageDataset(
        kind="images", name="noise", source="noise", classes=classes, train=shards, validation=shards[:1]
    )
    return _upload("images", files, index)


def _write_tar(path: Path, samples: Iterator[dict[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, sample in enumerate(samples):
            for extension, content in sample.items():
                member = tarfile.TarInfo(f"{number:06}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def opened(uri: str, cache: Path, model: dict[str, Any], micro_batch: int = MICRO_BATCH, **data: Any) -> Data:
    config = TrainerConfig.model_validate(
        {"model": model, "batch_size": micro_batch, "micro_batch_size": micro_batch, "data": data}
    )
    places = dict.fromkeys(("CHECKPOINT_URI", "RESULTS_URI"), str(cache))
    environment = Environment.read({"DATA_URI": uri, "TRAINYARD_CACHE": str(cache), **places})
    return open_data(config, environment, rank=0, ranks=1)


def memory_map(folder: Path) -> Batches:
    """Windows drawn at random, as nanoGPT's get_batch takes them, its map kept open."""
    tokens = np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r")
    while True:
        starts = torch.randint(len(tokens) - LENGTH, (MICRO_BATCH,)).tolist()
        inputs = [torch.from_numpy(tokens[at : at + LENGTH].astype(np.int64)) for at in starts]
        successors = [torch.from_numpy(tokens[at + 1 : at + 1 + LENGTH].astype(np.int64)) for at in starts]
        yield torch.stack(inputs), torch.stack(successors)


def memory_map_rows(folder: Path) -> Batches:
    """The same with no more work than there must be: rows copied out of the map at once, then converted."""
    windows = np.lib.stride_tricks.sliding_window_view(
        np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r"), LENGTH + 1
    )
    while True:
        rows = windows[np.random.randint(len(windows), size=MICRO_BATCH)]
        yield torch.from_numpy(rows[:, :-1].astype(np.int64)), torch.from_numpy(rows[:, 1:].astype(np.int64))


def web_dataset(folder: Path, decode: Callable[[dict[str, Any]], tuple[Tensor, ...]], workers: int) -> Batches:
    """Tar files one after the other in random order, through a buffer of 1000 samples, its usual pipeline."""
    urls = [str(file) for file in sorted(folder.glob("*.tar"))]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000).map(decode)
    batched = dataset.repeat().batched(MICRO_BATCH, collation_fn=_stacked)
    return iter(DataLoader(batched, batch_size=None, num_workers=workers))


def _stacked(samples: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(part) for part in zip(*samples, strict=True))


def _text(sample: dict[str, Any]) -> tuple[Tensor, ...]:
    tokens = torch.from_numpy(np.frombuffer(sample["tokens"], dtype=np.uint16).astype(np.int64))
    return tokens[:-1], tokens[1:]


def _picture(sample: dict[str, Any]) -> tuple[Tensor, ...]:
    """torchvision's usual recipe."""
    from PIL import Image
    from torchvision.transforms import v2

    from trainer.data.images import DEVIATION, MEAN

    image = v2.functional.pil_to_tensor(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))
    steps = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, True)]
    return v2.Compose([*steps, v2.Normalize(MEAN, DEVIATION)])(image), torch.tensor(int(sample["cls"]))


def rate(batches: Batches, seconds: float) -> float:
    """Samples a second."""
    next(batches)
    began, number = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds or number < 2:
        number += len(next(batches)[0])
    return number / passed


def compare(contestants: dict[str, Callable[[], Batches]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Samples a second of each, a round after the other, in an order that turns."""
    names = list(contestants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            batches = contestants[name]()
            found[name].append(rate(batches, seconds))
            del batches
    return found


def cold(uri: str, folder: Path, model: dict[str, Any], rounds: int) -> float:
    """Samples a second of a whole epoch from S3, from the opening on."""
    rates = []
    for number in range(rounds):
        cache, began, samples = folder / f"cold-{number}", time.perf_counter(), SHARDS * SAMPLES
        data = opened(uri, cache, model)
        for _ in islice(data.train(0), samples // MICRO_BATCH):
            pass
        rates.append(samples / (time.perf_counter() - began))
        data.close()
        shutil.rmtree(cache)
    return median(rates)


def data_wait(uri: str, folder: Path, cache: Path, steps: int) -> dict[str, float]:
    """The trainer's own job of one process: a step's median seconds, and the share of all that waits for data."""
    config = folder / "job.json"
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    config.write_text(job("10m", 1, steps, precision, **TRAINED).model_dump_json())
    lines = lines_of("ours", folder, config, 1, DATA_URI=uri, TRAINYARD_CACHE=str(cache))[WARM_UP:]
    seconds = [line["step_seconds"] for line in lines]
    waited = sum(line["data_seconds"] for line in lines)
    return {"steps": len(lines), "step_seconds": round(median(seconds), 3), "share": round(waited / sum(seconds), 6)}


def _decoder(length: int = LENGTH) -> dict[str, Any]:
    return {"preset": "10m", "sequence_length": length}


def _summary(found: dict[str, list[float]]) -> dict[str, Any]:
    rates = {name: median(values) for name, values in found.items()}
    ratio = rates["ours"] / max(rate for name, rate in rates.items() if name != "ours")
    return {"samples_per_second": {name: round(rate) for name, rate in rates.items()}, "ratio": round(ratio, 3)}


def measure(
    program: Path, rounds: int = ROUNDS, seconds: float = SECONDS, images: bool = False, steps: int = STEPS
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, serving(program, Path(name)):
        folder = Path(name)
        (folder / "text").mkdir()
        uri = write_tokens(folder / "text")
        found: dict[str, Any] = {"server": version(program), "sequence_length": LENGTH, "micro_batch": MICRO_BATCH}
        found["cold"] = {"samples_per_second": round(cold(uri, folder, _decoder(), rounds))}
        cache = folder / "cache"
        data = opened(uri, cache, _decoder())
        for _ in islice(data.train(0), SHARDS * SAMPLES // MICRO_BATCH):  # the cache is warm after an epoch
            pass
        consumed = iter(range(0, 10**9, MICRO_BATCH * 1000))
        contestants: dict[str, Callable[[], Batches]] = {
            "ours": lambda: data.train(next(consumed)),
            "memory map": partial(memory_map, folder / "text"),
            "memory map, by rows": partial(memory_map_rows, folder / "text"),
            "webdataset": partial(web_dataset, folder / "text", _text, 0),
            "webdataset, 2 workers": partial(web_dataset, folder / "text", _text, 2),
        }
        found |= _summary(compare(contestants, rounds, seconds))
        data.close()
        found["data_wait"] = data_wait(uri, folder, cache, steps)
        if images:
            found["images"] = _images(folder / "pictures", cache, rounds, seconds)
    return found


def _images(folder: Path, cache: Path, rounds: int, seconds: float) -> dict[str, Any]:
    folder.mkdir()
    uri = write_images(folder)
    model = {"kind": "images", "classes": 10, "image_size": SIDE}
    loaders = {workers: opened(uri, cache, model, workers=workers) for workers in (0, 2)}
    contestants: dict[str, Callable[[], Batches]] = {
        "ours": lambda: loaders[0].train(0),
        "ours, 2 workers": lambda: loaders[2].train(0),
        "webdataset": partial(web_dataset, folder, _picture, 0),
        "webdataset, 2 workers": partial(web_dataset, folder, _picture, 2),
    }
    rates = compare(contestants, rounds, 2 * seconds)
    for data in loaders.values():
        data.close()
    best = {
        side: max((median(values), values) for name, values in rates.items() if name.startswith(side))[1]
        for side in ("ours", "webdataset")
    }
    medians = {name: round(median(values), 1) for name, values in rates.items()}
    return {"samples_per_second": medians, "ratio": _summary(best)["ratio"]}


def main(
    as_json: AsJson = False,
    images: Annotated[bool, typer.Option("--images", help="Images, too.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each.")] = ROUNDS,
    server: Server = None,
) -> None:
    """Samples a second of our loader against others."""
    try:
        found = measure(find(server), rounds, images=images)
    except NoServer as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found["samples_per_second"].items():
        print(f"{name:>22}: {value} samples/s")
    print(f"{'ours, cold':>22}: {found['cold']['samples_per_second']} samples/s from {found['server']}")
    print(f"data wait {found['data_wait']['share']:.2%} of a step of {found['data_wait']['step_seconds']} s")
    if images:
        print(f"images {found['images']}")
    print(f"ratio {found['ratio']}")


if __name__ == "__main__":
    typer.run(main)
