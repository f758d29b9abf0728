"""Images in tar shards, read with the library webdataset."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.problems import rejects
from trainer.prepare.dataset import Request
from trainer.prepare.images import prepare_images
from trainyard.models.dataset import INDEX, ImageDataset

CreateRequest = Callable[..., Request]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """120 images of different colors, of three classes, in three formats."""
    for number in range(120):
        file = (
            tmp_path / "images" / ("cat", "dog", "eel")[number % 3] / f"{number}.{('png', 'jpeg', 'bmp')[number % 3]}"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (2 * number, 0, 0)).save(file)
    return tmp_path / "images"


def read(request: Request) -> tuple[ImageDataset, list[tuple[str, bytes, int]]]:
    """Return the index, and suffix, bytes and class of each image."""
    import webdataset

    index = ImageDataset.model_validate_json((Path(request.target) / INDEX).read_bytes())
    files = [str(Path(request.target) / shard.key) for shard in index.train + index.validation]
    samples = []
    for sample in webdataset.WebDataset(files, shardshuffle=False, empty_check=False):
        (suffix,) = {"jpg", "png"} & sample.keys()
        samples.append((suffix, sample[suffix], int(sample["cls"])))
    return index, samples


def test_dataset_has_every_image_with_its_class(folder: Path, request_to: CreateRequest) -> None:
    request = request_to()
    prepare_images(str(folder), 64, request)
    index, samples = read(request)
    assert index.classes == ("cat", "dog", "eel")
    assert sum(shard.count for shard in index.train + index.validation) == len(samples) == 120
    assert 5 < sum(shard.count for shard in index.validation) < 50
    for suffix, content, label in samples:
        assert suffix == ("png", "jpg", "png")[label]
        assert Image.open(io.BytesIO(content)).size == (8, 6)
    untouched = {file.read_bytes() for kind in ("cat", "dog") for file in (folder / kind).iterdir()}
    assert untouched <= {content for _, content, _ in samples}


def test_list_defines_files_and_classes(folder: Path, request_to: CreateRequest) -> None:
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


def test_few_damaged_images_are_reported_and_skipped(folder: Path, request_to: CreateRequest) -> None:
    damaged = next((folder / "dog").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:200])
    result = prepare_images(str(folder), 64, request_to())
    assert result.samples == 119
    (message,) = result.failed
    assert message.startswith(f"{damaged}: ")


def test_many_damaged_images_are_rejected(folder: Path, request_to: CreateRequest) -> None:
    for file in list((folder / "dog").iterdir())[:2]:
        file.write_bytes(b"no image")
    for _ in range(2):  # the second run resumes, and must fail in the same way
        with rejects("images_not_decodable", "2 of 120", "dog/"):
            prepare_images(str(folder), 64, request_to())


@pytest.mark.parametrize(
    ("files", "source", "code", "value"),
    [
        ({"a/x.png": ""}, "", "single_class", "'a'"),
        ({"x.png": ""}, "", "image_without_class", "x.png"),
        ({"a/x.txt": ""}, "", "source_empty", "images"),
        ({"l.csv": "file,label\n1.png,a\n"}, "l.csv", "label_line_incomplete", "line 2"),
        ({"l.csv": "file_name,label\n1.png,a\n"}, "l.csv", "image_missing", "1.png"),
        ({"l.jsonl": '{"file_name": \n'}, "l.jsonl", "invalid_json", "line 1"),
    ],
)
def test_invalid_source_is_rejected(
    files: dict[str, str], source: str, code: str, value: str, tmp_path: Path, request_to: CreateRequest
) -> None:
    for name, content in files.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_text(content)
    with rejects(code, value):
        prepare_images(str(tmp_path / "images" / source), 64, request_to())
