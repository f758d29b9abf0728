"""Token shards: complete, consistent with their index, independent of the number of processes and of the location."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import rejects
from tests.trainer.prepare.conftest import read_ids, read_index, read_texts
from trainer.prepare.dataset import Request
from trainer.prepare.documents import ReadOptions
from trainer.prepare.tokens import TextOptions, concatenate_files, prepare_tokens
from trainyard.errors import InputError

CreateRequest = Callable[..., Request]


def test_every_document_is_in_exactly_one_split(lines: Path, request_to: CreateRequest) -> None:
    request = request_to()
    result = prepare_tokens(TextOptions(sources=(str(lines.parent),), shard_tokens=2000), request)
    index = read_index(request.target)
    train, held_out = read_texts(request.target, index.train), read_texts(request.target, index.validation)
    assert sorted(train + held_out) == sorted(json.loads(line)["text"] for line in lines.read_text().splitlines())
    assert 30 < len(held_out) < 90
    assert (result.samples, index.end, index.dtype, index.vocabulary) == (300, 0, "uint8", 256)


def test_index_matches_the_shards(lines: Path, request_to: CreateRequest) -> None:
    request = request_to()
    prepare_tokens(TextOptions(sources=(str(lines),), tokenizer="train:300"), request)
    index = read_index(request.target)
    for shard in index.train + index.validation:
        content = (Path(request.target) / shard.key).read_bytes()
        assert (shard.bytes, shard.count, shard.sha256) == (
            len(content),
            len(content) // 2,
            hashlib.sha256(content).hexdigest(),
        )
    assert index.tokenizer == "tokenizer.json"
    assert index.dtype == "uint16"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(request.target) / index.tokenizer))
    tokens = np.array(read_ids(request.target, index.train))
    assert tokens.max() < index.vocabulary
    assert index.end is not None
    first = tokenizer.decode(list(tokens[: list(tokens).index(index.end)]))
    assert first.startswith("document ")


def test_dataset_does_not_depend_on_processes_or_location(
    lines: Path, request_to: CreateRequest, tmp_path: Path
) -> None:
    for number in range(6):
        file = lines.parent / f"{number}.jsonl"
        file.write_text("".join(json.dumps({"text": f"{number} {line}"}) + "\n" for line in range(200)))
    shutil.copytree(lines.parent, tmp_path / "elsewhere" / "corpus")
    datasets = []
    for number, folder in enumerate((lines.parent, tmp_path / "elsewhere" / "corpus")):
        request = request_to(f"out{number}", workers=number + 1)
        prepare_tokens(TextOptions(sources=(str(folder),), shard_tokens=3000, tokenizer="train:400"), request)
        datasets.append(read_index(request.target).model_copy(update={"source": ""}))
    assert datasets[0] == datasets[1]
    assert len(datasets[0].train) > 2


def test_held_out_documents_do_not_depend_on_order_or_shards(lines: Path, request_to: CreateRequest) -> None:
    first, second = request_to("a"), request_to("b")
    prepare_tokens(TextOptions(sources=(str(lines),)), first)
    lines.write_text("".join(reversed(lines.read_text().splitlines(keepends=True))))
    prepare_tokens(TextOptions(sources=(str(lines),), shard_tokens=500), second)
    held = [sorted(read_texts(request.target, read_index(request.target).validation)) for request in (first, second)]
    assert held[0] == held[1]


def test_mixture_has_the_weights_of_its_sources(request_to: CreateRequest, tmp_path: Path) -> None:
    """Two thirds of the text are from a source that has a ninth of it: each document is used six times."""
    for source, number in (("a", 40), ("b", 320)):
        lines = "".join(json.dumps({"text": f"{source} {line:03d}"}) + "\n" for line in range(number))
        (tmp_path / f"{source}.jsonl").write_text(lines)
    sources = tuple(str(tmp_path / f"{name}.jsonl") for name in "ab")
    request = request_to(held_out=0.2)
    prepare_tokens(TextOptions(sources=sources, weights=(2.0, 1.0)), request)
    index = read_index(request.target)
    train, held_out = (Counter(read_texts(request.target, shards)) for shards in (index.train, index.validation))
    assert {count for text, count in train.items() if text[0] == "a"} == {6}
    assert {count for text, count in train.items() if text[0] == "b"} == {1}
    assert len([text for text in train + held_out if text[0] == "b"]) == pytest.approx(120, rel=0.2)
    assert set(held_out.values()) == {1}
    assert not train.keys() & held_out.keys()


def test_each_source_needs_a_weight(request_to: CreateRequest, lines: Path) -> None:
    options = {"sources": (str(lines),), "weights": (1.0, 2.0)}
    assert_rejected(options, request_to(), "weights_mismatch", "2 for 1 sources")


def test_dataset_is_replaced_only_on_request(lines: Path, request_to: CreateRequest) -> None:
    prepare_tokens(TextOptions(sources=(str(lines),)), request_to())
    with rejects("target_has_dataset", "dataset.json", "--replace"):
        prepare_tokens(TextOptions(sources=(str(lines),)), request_to())
    prepare_tokens(TextOptions(sources=(str(lines),), tokenizer="train:300"), request_to(replace=True))
    target = Path(request_to().target)
    index = read_index(target)
    expected = {
        "dataset.json",
        "tokenizer.json",
        "tokenizer_config.json",
        *(shard.key for shard in index.train + index.validation),
    }
    assert {file.name for file in target.iterdir()} == expected


def assert_rejected(options: dict[str, Any], request: Request, code: str, *values: str) -> None:
    """Prepare a dataset with invalid options and check the problem."""
    with rejects(code, *values):
        prepare_tokens(TextOptions(**options), request)
    assert not (Path(request.target) / "dataset.json").exists()


def test_all_missing_sources_are_reported_together(request_to: CreateRequest, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        prepare_tokens(TextOptions(sources=(str(tmp_path / "a"), str(tmp_path / "b"))), request_to())
    assert [problem.code for problem in caught.value.problems] == ["source_missing", "source_missing"]


@pytest.mark.parametrize(
    ("tokenizer", "end", "code", "value"),
    [
        ("none.json", None, "tokenizer_missing", "--tokenizer"),
        ("train:abc", None, "invalid_tokenizer_option", "--tokenizer"),
        ("train:10", None, "vocabulary_too_small", "--tokenizer"),
        ("bytes", "</s>", "token_missing", "--end"),
    ],
)
def test_invalid_option_does_not_clear_the_work_folder(
    lines: Path, request_to: CreateRequest, tokenizer: str, end: str | None, code: str, value: str
) -> None:
    request = request_to()
    assert request.work
    with pytest.raises(KeyboardInterrupt), request.open_work_folder({"--field": "text"}):
        raise KeyboardInterrupt
    before = (request.work / "settings.json").read_bytes()
    assert_rejected({"sources": (str(lines),), "tokenizer": tokenizer, "end": end}, request, code, value)
    assert (request.work / "settings.json").read_bytes() == before


@pytest.mark.parametrize(("held_out", "value"), [(0.0, "hold out"), (1.0, "train on")])
def test_invalid_held_out_share_is_rejected(request_to: CreateRequest, held_out: float, value: str) -> None:
    with rejects("split_empty", value):
        request_to(held_out=held_out)


def test_fix_for_equal_documents_does_not_advise_a_smaller_share(request_to: CreateRequest, tmp_path: Path) -> None:
    """Equal documents are either all held out or all in the training split."""
    (tmp_path / "same.jsonl").write_text('{"text": "the same"}\n' * 300)
    options = {"sources": (str(tmp_path / "same.jsonl"),)}
    assert_rejected(options, request_to(held_out=0.1), "split_empty", "300", "Raise it, or add documents")


@pytest.mark.parametrize("inside", ["", "out"])
def test_target_inside_a_source_is_rejected(request_to: CreateRequest, lines: Path, inside: str) -> None:
    request = replace(request_to(), target=str(lines.parent / inside))
    assert_rejected(
        {"sources": (str(lines.parent),)}, request, "target_inside_source", request.target, str(lines.parent)
    )
    assert [file.name for file in lines.parent.iterdir()] == ["a.jsonl"]


def test_unknown_format_is_rejected(request_to: CreateRequest, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("")
    assert_rejected({"sources": (str(tmp_path / "a.docx"),)}, request_to(), "unknown_file_format", ".docx", "--format")


def test_input_error_of_a_worker_process_is_raised_unchanged(lines: Path, request_to: CreateRequest) -> None:
    options = {"sources": (str(lines),), "reading": ReadOptions(field="body")}
    assert_rejected(options, request_to(), "field_missing", "a.jsonl': line 1", "'body'")


def test_empty_held_out_split_is_rejected(lines: Path, request_to: CreateRequest) -> None:
    assert_rejected({"sources": (str(lines),)}, request_to(held_out=1e-9), "split_empty", "--held-out = 1e-09", "0.017")


def test_single_document_is_rejected(request_to: CreateRequest, tmp_path: Path) -> None:
    """A small corpus in one file can't be split at any share."""
    source = tmp_path / "input.txt"
    source.write_text("Speak, speak.\n" * 20_000)
    options = {"sources": (str(source),)}
    assert_rejected(options, request_to(held_out=0.5), "training_split_empty", "--document-kib 16 --held-out 0.1")


def test_text_of_empty_documents_is_rejected(request_to: CreateRequest, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n')
    assert_rejected({"sources": (str(tmp_path / "a.jsonl"),)}, request_to(), "source_empty")


def test_unwritable_target_is_rejected(lines: Path) -> None:
    request = Request(target="/proc/none", name="d", held_out=0.5, workers=1)
    assert_rejected({"sources": (str(lines),)}, request, "folder_not_writable", "--target = '/proc/none/'")


def test_concatenated_files_have_the_limit_as_size(tmp_path: Path) -> None:
    for number, size in enumerate((5, 0, 12, 3)):
        (tmp_path / str(number)).write_bytes(bytes([number]) * size)
    index = [
        file.read_bytes() for file in concatenate_files([tmp_path / str(number) for number in range(4)], 8, tmp_path)
    ]
    assert index == [b"\0" * 5 + b"\2" * 3, b"\2" * 8, b"\2" + b"\3" * 3]
