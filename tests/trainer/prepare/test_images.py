"""Images into tar shards, as the library webdataset reads them."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from trainer.prepare.dataset import Request
from trainer.prepare.images import prepare_images
from trainyard.base import InputError
from trainyard.models.dataset import INDEX, ImageDataset

Make = Callable[..., Request]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """120 images of three classes, each of its own colour, in three formats."""
    for number in range(120):
        file = (
            tmp_path / "images" / ("cat", "dog", "eel")[number % 3] / f"{number}.{('png', 'jpeg', 'bmp')[number % 3]}"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (2 * number, 0, 0)).save(file)
    return tmp_path / "images"


def read(request: Request) -> tuple[ImageDataset, list[tuple[str, bytes, int]]]:
    """The index, and suffix, bytes and class of each image."""
    import webdataset

    found = ImageDataset.model_validate_json((Path(request.target) / INDEX).read_bytes())
    files = [str(Path(request.target) / shard.key) for shard in found.train + found.validation]
    samples = []
    for sample in webdataset.WebDataset(files, shardshuffle=False, empty_check=False):
        (suffix,) = {"jpg", "png"} & sample.keys()
        samples.append((suffix, sample[suffix], int(sample["cls"])))
    return found, samples


def test_every_image_is_there_with_its_class(folder: Path, request_to: Make) -> None:
    request = request_to()
    prepare_images(str(folder), 64, request)
    found, samples = read(request)
    assert found.classes == ("cat", "dog", "eel")
    assert sum(shard.count for shard in found.train + found.validation) == len(samples) == 120
    assert 5 < sum(shard.count for shard in found.validation) < 50
    for suffix, content, label in samples:
        assert suffix == ("png", "jpg", "png")[label]
        assert Image.open(io.BytesIO(content)).size == (8, 6)
    untouched = {file.read_bytes() for kind in ("cat", "dog") for file in (folder / kind).iterdir()}
    assert untouched <= {content for _, content, _ in samples}


def test_a_list_tells_files_and_classes(folder: Path, request_to: Make) -> None:
    rows = [
        {"file_name": f"{kind}/{file.name}", "label": label}
        for kind, label in (("cat", 10), ("dog", 9))
        for file in (folder / kind).iterdir()
    ]
    (folder / "list.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "list.csv").write_text(
        "file_name,label\n" + "\n".join(f"{row['file_name']},{row['label']}" for row in rows)
    )
    datasets = []
    for suffix in ("jsonl", "csv"):
        request = request_to(suffix)
        prepare_images(str(folder / f"list.{suffix}"), 64, request)
        datasets.append(read(request)[0].model_copy(update={"source": ""}))
    assert datasets[0] == datasets[1]
    assert datasets[0].classes == ("9", "10")


def test_some_damaged_images_are_named_and_left_out(folder: Path, request_to: Make) -> None:
    damaged = next((folder / "dog").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:200])
    result = prepare_images(str(folder), 64, request_to())
    assert result.samples == 119
    (told,) = result.failed
    assert told.startswith(f"{damaged}: ")


def test_many_damaged_images_are_refused(folder: Path, request_to: Make) -> None:
    for file in list((folder / "dog").iterdir())[:2]:
        file.write_bytes(b"no image")
    for _ in range(2):  # what a refused run has made is no way around
        with pytest.raises(InputError, match=r"2 of 120 images can't be decoded: .*dog/.*; .*dog/.*: cannot identify"):
            prepare_images(str(folder), 64, request_to())


@pytest.mark.parametrize(
    ("files", "source", "told"),
    [
        ({"a/x.png": ""}, "", "has one class only, 'a'"),
        ({"x.png": ""}, "", "lies in no class's folder"),
        ({"a/x.txt": ""}, "", "holds no images"),
        ({"l.csv": "file,label\n1.png,a\n"}, "l.csv", "line 2 has no file_name. Give each image its file_name"),
        ({"l.csv": "file_name,label\n1.png,a\n"}, "l.csv", "line 2: there is no file 1.png"),
        ({"l.jsonl": '{"file_name": \n'}, "l.jsonl", "line 1 is no JSON"),
    ],
)
def test_a_wrong_source_is_told(
    files: dict[str, str], source: str, told: str, tmp_path: Path, request_to: Make
) -> None:
    for name, content in files.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_text(content)
    with pytest.raises(InputError, match=told):
        prepare_images(str(tmp_path / "images" / source), 64, request_to())
