"""Samples per second of the trainer's data loader from S3, compared with WebDataset and a memory map of local files.

The same tokens are shards on a local S3 server (versitygw with a folder), tar files for WebDataset, and one file for
the memory map, from which windows are drawn as in nanoGPT. Each loader returns micro-batches of (tokens, targets),
int64. With `--images` the same images are compared with WebDataset only.

`ratio`: the trainer's loader with a warm cache over the fastest of the others, whose files are also in memory; medians
of rounds in rotating order. `cold`: the trainer's loader with an empty cache, a whole epoch. `data_wait`: the share of
the trainer's steps that waits for data, according to its metrics, with 10 million parameters and data in S3.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Server
from benchmarks.s3_server import BUCKET, S3ServerError, find_server, read_version, run_server
from benchmarks.trainer import WARMUP_STEPS, job_config, run_job
from trainer.data import Data, open_data
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.models.dataset import INDEX, ImageDataset, Shard, TokenDataset

LENGTH, MICRO_BATCH, SHARDS, SAMPLES = 1024, 16, 16, 1000  # tokens; samples; shards; samples per shard
VOCABULARY = 32_000
PICTURES, PICTURE_SHARDS, SIDE = 100, 4, 224
ROUNDS, STEPS = 7, 20
TRAINED: dict[str, Any] = {"micro": 4, "length": 256}  # samples and tokens of a micro-batch
SECONDS = 0.5  # minimum duration of a measurement
Batches = Iterator[tuple[Tensor, ...]]


def _upload(prefix: str, files: dict[str, bytes], index: TokenDataset | ImageDataset) -> str:
    client = boto3.Session().client("s3")
    for key, content in {**files, INDEX: index.model_dump_json().encode()}.items():
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=content)
    return f"s3://{BUCKET}/{prefix}"


def _shard(key: str, content: bytes, count: int) -> Shard:
    return Shard(key=key, count=count, bytes=len(content), sha256=sha256(content).hexdigest())


def write_tokens(folder: Path) -> str:
    """Write the tokens in all three formats and return the URI of the trainer's dataset."""
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
    options: dict[str, Any] = {"dtype": "uint16", "vocabulary": VOCABULARY, "validation": shards[-1:]}
    return _upload("tokens", files, TokenDataset(name="random", source="noise", train=shards[:-1], **options))


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


def open_dataset(uri: str, cache: Path, model: dict[str, Any], micro_batch: int = MICRO_BATCH, **data: Any) -> Data:
    config = TrainerConfig.model_validate(
        {"model": model, "batch_size": micro_batch, "micro_batch_size": micro_batch, "data": data}
    )
    output_uris = dict.fromkeys(("CHECKPOINT_URI", "RESULTS_URI"), str(cache))
    environment = Environment.read({"DATA_URI": uri, "TRAINYARD_CACHE": str(cache), **output_uris})
    return open_data(config, environment, rank=0, ranks=1)


def memory_map(folder: Path) -> Batches:
    """Yield random windows as nanoGPT's get_batch does, with the memory map kept open."""
    tokens = np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r")
    while True:
        starts = torch.randint(len(tokens) - LENGTH, (MICRO_BATCH,)).tolist()
        inputs = [torch.from_numpy(tokens[at : at + LENGTH].astype(np.int64)) for at in starts]
        targets = [torch.from_numpy(tokens[at + 1 : at + 1 + LENGTH].astype(np.int64)) for at in starts]
        yield torch.stack(inputs), torch.stack(targets)


def memory_map_rows(folder: Path) -> Batches:
    """Yield random windows with minimal work: rows are copied from the memory map at once, then converted."""
    windows = np.lib.stride_tricks.sliding_window_view(
        np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r"), LENGTH + 1
    )
    while True:
        rows = windows[np.random.randint(len(windows), size=MICRO_BATCH)]
        yield torch.from_numpy(rows[:, :-1].astype(np.int64)), torch.from_numpy(rows[:, 1:].astype(np.int64))


def web_dataset(folder: Path, decode: Callable[[dict[str, Any]], tuple[Tensor, ...]], workers: int) -> Batches:
    """Return WebDataset's usual pipeline: tar files in random order with a shuffle buffer of 1000 samples."""
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
    """Decode and augment an image with torchvision's usual transforms."""
    from PIL import Image
    from torchvision.transforms import v2

    from trainer.models.images import MEAN, STD

    image = v2.functional.pil_to_tensor(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))
    steps = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, True)]
    return v2.Compose([*steps, v2.Normalize(MEAN, STD)])(image), torch.tensor(int(sample["cls"]))


def rate(batches: Batches, seconds: float) -> float:
    """Return the samples per second of a loader."""
    next(batches)
    started, number = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds or number < 2:
        number += len(next(batches)[0])
    return number / elapsed


def compare(loaders_by_name: dict[str, Callable[[], Batches]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the samples per second of each loader in each round, in rotating order."""
    names = list(loaders_by_name)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            batches = loaders_by_name[name]()
            rates[name].append(rate(batches, seconds))
            del batches
    return rates


def cold_rate(uri: str, folder: Path, model: dict[str, Any], rounds: int) -> float:
    """Return the samples per second of a whole epoch from S3 with an empty cache, including the start."""
    rates = []
    for number in range(rounds):
        cache, started, samples = folder / f"cold-{number}", time.perf_counter(), SHARDS * SAMPLES
        data = open_dataset(uri, cache, model)
        for _ in islice(data.train_batches(0), samples // MICRO_BATCH):
            pass
        rates.append(samples / (time.perf_counter() - started))
        data.close()
        shutil.rmtree(cache)
    return median(rates)


def data_wait(uri: str, folder: Path, cache: Path, steps: int) -> dict[str, float]:
    """Run the trainer with one process and return the median step duration and the share that waits for data."""
    config = folder / "job.json"
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    config.write_text(job_config("10m", 1, steps, precision, **TRAINED).model_dump_json())
    lines = run_job("trainyard", folder, config, 1, DATA_URI=uri, TRAINYARD_CACHE=str(cache))[WARMUP_STEPS:]
    seconds = [line["step_seconds"] for line in lines]
    waited = sum(line["data_seconds"] for line in lines)
    return {"steps": len(lines), "step_seconds": round(median(seconds), 3), "share": round(waited / sum(seconds), 6)}


def _decoder(length: int = LENGTH) -> dict[str, Any]:
    return {"preset": "10m", "sequence_length": length}


def _summarize(rates_by_name: dict[str, list[float]]) -> dict[str, Any]:
    rates = {name: median(values) for name, values in rates_by_name.items()}
    ratio = rates["trainyard"] / max(rate for name, rate in rates.items() if name != "trainyard")
    return {"samples_per_second": {name: round(rate) for name, rate in rates.items()}, "ratio": round(ratio, 3)}


def measure(
    program: Path, rounds: int = ROUNDS, seconds: float = SECONDS, images: bool = False, steps: int = STEPS
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, run_server(program, Path(name)):
        folder = Path(name)
        (folder / "text").mkdir()
        uri = write_tokens(folder / "text")
        results: dict[str, Any] = {
            "server": read_version(program),
            "sequence_length": LENGTH,
            "micro_batch": MICRO_BATCH,
        }
        results["cold"] = {"samples_per_second": round(cold_rate(uri, folder, _decoder(), rounds))}
        cache = folder / "cache"
        data = open_dataset(uri, cache, _decoder())
        for _ in islice(data.train_batches(0), SHARDS * SAMPLES // MICRO_BATCH):  # fills the cache
            pass
        consumed = iter(range(0, 10**9, MICRO_BATCH * 1000))
        loaders_by_name: dict[str, Callable[[], Batches]] = {
            "trainyard": lambda: data.train_batches(next(consumed)),
            "memory map": partial(memory_map, folder / "text"),
            "memory map, by rows": partial(memory_map_rows, folder / "text"),
            "webdataset": partial(web_dataset, folder / "text", _text, 0),
            "webdataset, 2 workers": partial(web_dataset, folder / "text", _text, 2),
        }
        results |= _summarize(compare(loaders_by_name, rounds, seconds))
        data.close()
        results["data_wait"] = data_wait(uri, folder, cache, steps)
        if images:
            results["images"] = _images(folder / "pictures", cache, rounds, seconds)
    return results


def _images(folder: Path, cache: Path, rounds: int, seconds: float) -> dict[str, Any]:
    folder.mkdir()
    uri = write_images(folder)
    model = {"kind": "images", "classes": 10, "image_size": SIDE}
    loaders = {workers: open_dataset(uri, cache, model, workers=workers) for workers in (0, 2)}
    loaders_by_name: dict[str, Callable[[], Batches]] = {
        "trainyard": lambda: loaders[0].train_batches(0),
        "ours, 2 workers": lambda: loaders[2].train_batches(0),
        "webdataset": partial(web_dataset, folder, _picture, 0),
        "webdataset, 2 workers": partial(web_dataset, folder, _picture, 2),
    }
    rates = compare(loaders_by_name, rounds, 2 * seconds)
    for data in loaders.values():
        data.close()
    best = {
        side: max((median(values), values) for name, values in rates.items() if name.startswith(side))[1]
        for side in ("trainyard", "webdataset")
    }
    medians = {name: round(median(values), 1) for name, values in rates.items()}
    return {"samples_per_second": medians, "ratio": _summarize(best)["ratio"]}


def main(
    as_json: AsJson = False,
    images: Annotated[bool, typer.Option("--images", help="Measure images too.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements per loader.")] = ROUNDS,
    server: Server = None,
) -> None:
    """Compare the samples per second of the trainer's data loader and others."""
    try:
        results = measure(find_server(server), rounds, images=images)
    except S3ServerError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(results))
        return
    for name, value in results["samples_per_second"].items():
        print(f"{name:>22}: {value} samples/s")
    print(f"{'ours, cold':>22}: {results['cold']['samples_per_second']} samples/s from {results['server']}")
    print(f"data wait {results['data_wait']['share']:.2%} of a step of {results['data_wait']['step_seconds']} s")
    if images:
        print(f"images {results['images']}")
    print(f"ratio {results['ratio']}")


if __name__ == "__main__":
    typer.run(main)
