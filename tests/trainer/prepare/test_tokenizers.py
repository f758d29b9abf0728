"""Tokenizers: any tokenizer.json, trained ones, the ids that end and mask."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from trainer.prepare import tokenizers as subject
from trainer.prepare.documents import Document
from trainer.prepare.tokenizers import BYTES, Vocabulary, adopt, train, trained
from trainyard.base import InputError

SOURCE = Path(argparse.__file__).read_text()


def document(text: str) -> Document:
    return Document(text, text.encode())


def words(file: Path, *names: str, special: tuple[str, ...] = ()) -> Path:
    """A tokenizer.json of whole words."""
    tokenizer = Tokenizer(models.WordLevel({name: id for id, name in enumerate(names)}, unk_token=names[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    if special:
        id = tokenizer.token_to_id(special[0])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special[0]} $A", special_tokens=[(special[0], id)]
        )
    tokenizer.save(str(file))
    return file


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("bpe")
    train(lambda: [SOURCE], 600, False, folder / "trained.json")
    return adopt(folder / "trained.json", None, folder / "tokenizer.json")


def test_bytes_end_in_zero() -> None:
    assert [list(one) for one in BYTES.encode([document("aü"), document("b")])] == [[97, 195, 188, 0], [98, 0]]


def test_a_trained_bpe_gives_the_text_back(bpe: Vocabulary) -> None:
    text = SOURCE[:2000] + "ü€😀\x00"
    (found,) = bpe.encode([document(text)])
    assert found.dtype == np.uint16
    assert found[-1] == bpe.end
    assert Tokenizer.from_file(str(bpe.file)).decode(list(found[:-1])) == text
    assert (bpe.size, bpe.mask) == (600, None)


def test_a_trained_word_piece_can_mask(tmp_path: Path) -> None:
    train(lambda: [SOURCE], 600, True, tmp_path / "trained.json")
    found = adopt(tmp_path / "trained.json", None, tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(found.file))
    assert (found.end, found.mask) == (tokenizer.token_to_id("[SEP]"), tokenizer.token_to_id("[MASK]"))
    assert tokenizer.token_to_id("[UNK]") not in found.encode([document(SOURCE[:1000])])[0]


@pytest.mark.parametrize("word_piece", [False, True])
def test_training_is_the_same_each_time(tmp_path: Path, word_piece: bool) -> None:
    for name in ("a", "b"):
        train(lambda: [SOURCE], 500, word_piece, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_neither_cuts_nor_pads_nor_adds(tmp_path: Path) -> None:
    file = words(tmp_path / "a.json", "?", "a", "b", special=("[CLS]", "[SEP]"))
    found = adopt(file, None, tmp_path / "tokenizer.json")
    assert [list(ids) for ids in found.encode([document("a b a b"), document("a")])] == [[1, 2, 1, 2, 4], [1, 4]]


@pytest.mark.parametrize(
    ("config", "end", "expected"),
    [
        ({"eos_token": {"content": "b"}, "sep_token": "[SEP]"}, None, "b"),
        ({"eos_token": None, "sep_token": "[SEP]"}, None, "[SEP]"),
        ({}, None, "</s>"),
        ({"eos_token": "b"}, "a", "a"),
    ],
)
def test_which_token_ends(tmp_path: Path, config: dict[str, Any], end: str | None, expected: str) -> None:
    file = words(tmp_path / "a.json", "?", "a", "b", special=("</s>", "[SEP]"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = adopt(file, end, tmp_path / "tokenizer.json")
    assert Tokenizer.from_file(str(found.file)).id_to_token(found.end) == expected


def test_an_end_is_added_where_there_is_none(tmp_path: Path) -> None:
    found = adopt(words(tmp_path / "a.json", "?", "a"), None, tmp_path / "tokenizer.json")
    assert (found.end, found.size) == (2, 3)
    assert Tokenizer.from_file(str(found.file)).id_to_token(2) == "<|endoftext|>"


@pytest.mark.parametrize(("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_ids_are_as_narrow_as_the_vocabulary_allows(size: int, dtype: str) -> None:
    assert Vocabulary(None, size, 0, None).dtype == dtype


def test_a_long_document_is_tokenized_in_parts(bpe: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bpe.encode([document(SOURCE[:5000])])[0]
    monkeypatch.setattr(subject, "_AT_ONCE", 1000)
    tokenizer = Tokenizer.from_file(str(bpe.file))
    (parts,) = bpe.encode([document(SOURCE[:5000])])
    assert tokenizer.decode(list(parts)) == tokenizer.decode(list(whole))
    assert list(parts).count(bpe.end) == 1


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("train:many", "is not to be understood. Write train:32000"),
        ("train:100", "a vocabulary of 100 is too small. Make it 258 or more"),
        ("train:6:wordpiece", "a vocabulary of 6 is too small. Make it 7 or more"),
    ],
)
def test_a_wrong_size_is_told(asked: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        trained(asked)


def test_a_tokenizer_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=r"a\.json'?: can't be read: "):
        adopt(tmp_path / "a.json", None, tmp_path / "b.json")
    with pytest.raises(InputError, match=r"there is no such file\. Name a tokenizer.json, bytes, or train:VOCAB"):
        adopt(tmp_path / "none.json", None, tmp_path / "b.json")


def test_an_end_that_is_no_token_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--end = '<eot>': .*a\.json has no such token"):
        adopt(words(tmp_path / "a.json", "?", "a"), "<eot>", tmp_path / "b.json")
