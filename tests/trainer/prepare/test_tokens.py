"""Text into token shards: whole, true to their index, the same whatever the number of processes or the place."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.prepare.conftest import ids, index, texts
from trainer.prepare.dataset import Request
from trainer.prepare.documents import Reading
from trainer.prepare.tokens import Text, joined, prepare_tokens
from trainyard.base import InputError

Make = Callable[..., Request]


def test_every_document_is_in_one_split(lines: Path, request_to: Make) -> None:
    request = request_to()
    result = prepare_tokens(Text(sources=(str(lines.parent),), shard_tokens=2000), request)
    found = index(request.target)
    train, held_out = texts(request.target, found.train), texts(request.target, found.validation)
    assert sorted(train + held_out) == sorted(json.loads(line)["text"] for line in lines.read_text().splitlines())
    assert 30 < len(held_out) < 90
    assert (result.samples, found.end, found.dtype, found.vocabulary) == (300, 0, "uint8", 256)


def test_the_index_is_true_of_the_shards(lines: Path, request_to: Make) -> None:
    request = request_to()
    prepare_tokens(Text(sources=(str(lines),), tokenizer="train:300"), request)
    found = index(request.target)
    for shard in found.train + found.validation:
        content = (Path(request.target) / shard.key).read_bytes()
        assert (shard.bytes, shard.count, shard.sha256) == (
            len(content),
            len(content) // 2,
            hashlib.sha256(content).hexdigest(),
        )
    assert found.tokenizer == "tokenizer.json"
    assert found.dtype == "uint16"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(request.target) / found.tokenizer))
    tokens = np.array(ids(request.target, found.train))
    assert tokens.max() < found.vocabulary
    assert found.end is not None
    first = tokenizer.decode(list(tokens[: list(tokens).index(found.end)]))
    assert first.startswith("document ")


def test_it_is_the_same_with_any_number_of_processes_in_any_place(
    lines: Path, request_to: Make, tmp_path: Path
) -> None:
    for number in range(6):
        file = lines.parent / f"{number}.jsonl"
        file.write_text("".join(json.dumps({"text": f"{number} {line}"}) + "\n" for line in range(200)))
    shutil.copytree(lines.parent, tmp_path / "elsewhere" / "corpus")
    datasets = []
    for number, folder in enumerate((lines.parent, tmp_path / "elsewhere" / "corpus")):
        request = request_to(f"out{number}", workers=number + 1)
        prepare_tokens(Text(sources=(str(folder),), shard_tokens=3000, tokenizer="train:400"), request)
        datasets.append(index(request.target).model_copy(update={"source": ""}))
    assert datasets[0] == datasets[1]
    assert len(datasets[0].train) > 2


def test_what_is_held_out_does_not_depend_on_order_or_shards(lines: Path, request_to: Make) -> None:
    first, second = request_to("a"), request_to("b")
    prepare_tokens(Text(sources=(str(lines),)), first)
    lines.write_text("".join(reversed(lines.read_text().splitlines(keepends=True))))
    prepare_tokens(Text(sources=(str(lines),), shard_tokens=500), second)
    held = [sorted(texts(one.target, index(one.target).validation)) for one in (first, second)]
    assert held[0] == held[1]


def test_a_dataset_is_not_replaced_unasked(lines: Path, request_to: Make) -> None:
    prepare_tokens(Text(sources=(str(lines),)), request_to())
    with pytest.raises(InputError, match=r"holds a dataset \(dataset.json\) already. Name another, or replace it"):
        prepare_tokens(Text(sources=(str(lines),)), request_to())
    prepare_tokens(Text(sources=(str(lines),), tokenizer="train:300"), request_to(replace=True))
    target = Path(request_to().target)
    found = index(target)
    there = {"dataset.json", "tokenizer.json", *(shard.key for shard in found.train + found.validation)}
    assert {file.name for file in target.iterdir()} == there


def refused(text: dict[str, Any], request: Request) -> str:
    with pytest.raises(InputError) as error:
        prepare_tokens(Text(**text), request)
    assert not (Path(request.target) / "dataset.json").exists()
    return str(error.value)


def test_what_can_not_be_found_is_told_together(request_to: Make, tmp_path: Path) -> None:
    told = refused({"sources": (str(tmp_path / "a"), str(tmp_path / "b"))}, request_to())
    assert told.count("there is no such file or folder. Name one that is there.") == 2


@pytest.mark.parametrize(
    ("tokenizer", "end", "words"),
    [
        ("none.json", None, "--tokenizer = 'none.json': there is no such file"),
        ("train:abc", None, "--tokenizer = 'train:abc': is not to be understood"),
        ("train:10", None, "--tokenizer = 'train:10': a vocabulary of 10 is too small"),
        ("bytes", "</s>", "--end = '</s>': bytes have no such token"),
    ],
)
def test_a_slip_loses_nothing_of_what_a_killed_run_had_done(
    lines: Path, request_to: Make, tokenizer: str, end: str | None, words: str
) -> None:
    request = request_to()
    assert request.work
    with pytest.raises(KeyboardInterrupt), request.open({"--field": "text"}):
        raise KeyboardInterrupt
    before = (request.work / "words.json").read_bytes()
    assert words in refused({"sources": (str(lines),), "tokenizer": tokenizer, "end": end}, request)
    assert (request.work / "words.json").read_bytes() == before


@pytest.mark.parametrize(("held_out", "words"), [(0.0, "leaves nothing to hold out"), (1.0, "nothing to train on")])
def test_a_share_that_is_none_is_told_at_once(request_to: Make, held_out: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        request_to(held_out=held_out)


def test_advice_to_hold_out_less_is_not_given(request_to: Make, tmp_path: Path) -> None:
    """Equal documents are all held out, or none of them."""
    (tmp_path / "same.jsonl").write_text('{"text": "the same"}\n' * 300)
    told = refused({"sources": (str(tmp_path / "same.jsonl"),)}, request_to(held_out=0.1))
    assert "of 300 documents, or images, none is held out. Raise it, or give more of them" in told


@pytest.mark.parametrize("inside", ["", "out"])
def test_a_target_among_the_sources_is_told(request_to: Make, lines: Path, inside: str) -> None:
    request = replace(request_to(), target=str(lines.parent / inside))
    told = refused({"sources": (str(lines.parent),)}, request)
    assert f"--target = '{request.target}': lies in the source {lines.parent}" in told
    assert [file.name for file in lines.parent.iterdir()] == ["a.jsonl"]


def test_an_unknown_format_is_told(request_to: Make, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("")
    told = refused({"sources": (str(tmp_path / "a.docx"),)}, request_to())
    assert "its suffix '.docx' tells no format. Give --format text, jsonl or parquet" in told


def test_an_error_in_a_process_is_told_as_it_is(lines: Path, request_to: Make) -> None:
    told = refused({"sources": (str(lines),), "reading": Reading(field="body")}, request_to())
    assert "a.jsonl': line 1 has no field 'body': it has text. Name the field of the text with --field." in told


def test_nothing_held_out_is_told(lines: Path, request_to: Make) -> None:
    told = refused({"sources": (str(lines),)}, request_to(held_out=1e-9))
    assert "--held-out = 1e-09: of 300 documents, or images, none is held out. Raise it, such as to 0.017" in told


def test_one_document_is_told(request_to: Make, tmp_path: Path) -> None:
    """A small corpus in one file: no share of it would do."""
    source = tmp_path / "input.txt"
    source.write_text("Speak, speak.\n" * 20_000)
    told = refused({"sources": (str(source),)}, request_to(held_out=0.5))
    assert "SOURCE = 'one document, or image': nothing is left to train on once it is held out" in told
    assert "by --document-kib 16 --held-out 0.1" in told


def test_text_of_empty_documents_is_told(request_to: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n')
    told = refused({"sources": (str(tmp_path / "a.jsonl"),)}, request_to())
    assert "holds nothing: every document is empty" in told


def test_a_target_that_cannot_be_written_is_told(lines: Path) -> None:
    request = Request(target="/proc/none", name="d", held_out=0.5, workers=1)
    told = refused({"sources": (str(lines),)}, request)
    assert "--target = '/proc/none/': can't be made" in told


def test_held_out_files_become_files_of_one_size(tmp_path: Path) -> None:
    for number, size in enumerate((5, 0, 12, 3)):
        (tmp_path / str(number)).write_bytes(bytes([number]) * size)
    found = [file.read_bytes() for file in joined([tmp_path / str(number) for number in range(4)], 8, tmp_path)]
    assert found == [b"\0" * 5 + b"\2" * 3, b"\2" * 8, b"\2" + b"\3" * 3]
