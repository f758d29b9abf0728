"""Tokenizers: imported, trained, and the ids of end and mask tokens."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.problems import rejects
from trainer.prepare import tokenizers as subject
from trainer.prepare.documents import Document
from trainer.prepare.tokenizers import (
    BYTES,
    Vocabulary,
    import_tokenizer,
    parse_training,
    tokenizer_files,
    train,
)

SOURCE = Path(argparse.__file__).read_text()


def document(text: str) -> Document:
    return Document(text, text.encode())


def write_tokenizer(file: Path, *names: str, special: tuple[str, ...] = ()) -> Path:
    """Write a tokenizer.json whose tokens are whole words."""
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
    return import_tokenizer(folder / "trained.json", None, folder / "tokenizer.json")


def test_documents_of_bytes_end_with_zero() -> None:
    assert [list(ids) for ids in BYTES.encode([document("aü"), document("b")])] == [[97, 195, 188, 0], [98, 0]]


def test_trained_bpe_restores_the_text(bpe: Vocabulary) -> None:
    text = SOURCE[:2000] + "ü€😀\x00"
    (result,) = bpe.encode([document(text)])
    assert result.dtype == np.uint16
    assert result[-1] == bpe.end
    assert Tokenizer.from_file(str(bpe.file)).decode(list(result[:-1])) == text
    assert (bpe.size, bpe.mask) == (600, None)


def test_trained_word_piece_has_a_mask_token(tmp_path: Path) -> None:
    train(lambda: [SOURCE], 600, True, tmp_path / "trained.json")
    result = import_tokenizer(tmp_path / "trained.json", None, tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(result.file))
    assert (result.end, result.mask) == (tokenizer.token_to_id("[SEP]"), tokenizer.token_to_id("[MASK]"))
    assert tokenizer.token_to_id("[UNK]") not in result.encode([document(SOURCE[:1000])])[0]


@pytest.mark.parametrize("word_piece", [False, True])
def test_training_is_deterministic(tmp_path: Path, word_piece: bool) -> None:
    for name in ("a", "b"):
        train(lambda: [SOURCE], 500, word_piece, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_imported_tokenizer_does_not_truncate_pad_or_add_tokens(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "a.json", "?", "a", "b", special=("[CLS]", "[SEP]"))
    result = import_tokenizer(file, None, tmp_path / "tokenizer.json")
    assert [list(ids) for ids in result.encode([document("a b a b"), document("a")])] == [[1, 2, 1, 2, 4], [1, 4]]


@pytest.mark.parametrize(
    ("config", "end", "expected"),
    [
        ({"eos_token": {"content": "b"}, "sep_token": "[SEP]"}, None, "b"),
        ({"eos_token": None, "sep_token": "[SEP]"}, None, "[SEP]"),
        ({}, None, "</s>"),
        ({"eos_token": "b"}, "a", "a"),
    ],
)
def test_end_token_is_selected_by_option_config_or_name(
    tmp_path: Path, config: dict[str, Any], end: str | None, expected: str
) -> None:
    file = write_tokenizer(tmp_path / "a.json", "?", "a", "b", special=("</s>", "[SEP]"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    result = import_tokenizer(file, end, tmp_path / "tokenizer.json")
    assert Tokenizer.from_file(str(result.file)).id_to_token(result.end) == expected


def test_end_token_is_added_if_missing(tmp_path: Path) -> None:
    result = import_tokenizer(write_tokenizer(tmp_path / "a.json", "?", "a"), None, tmp_path / "tokenizer.json")
    assert (result.end, result.size) == (2, 3)
    assert Tokenizer.from_file(str(result.file)).id_to_token(2) == "<|endoftext|>"


@pytest.mark.parametrize(("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_dtype_is_the_smallest_for_the_vocabulary(size: int, dtype: str) -> None:
    assert Vocabulary(None, size, 0, None).dtype == dtype


def test_long_document_is_tokenized_in_parts(bpe: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bpe.encode([document(SOURCE[:5000])])[0]
    monkeypatch.setattr(subject, "_MAX_CHARACTERS", 1000)
    tokenizer = Tokenizer.from_file(str(bpe.file))
    (parts,) = bpe.encode([document(SOURCE[:5000])])
    assert tokenizer.decode(list(parts)) == tokenizer.decode(list(whole))
    assert list(parts).count(bpe.end) == 1


@pytest.mark.parametrize(
    ("option", "code", "value"),
    [
        ("train:many", "invalid_tokenizer_option", "train:many"),
        ("train:100", "vocabulary_too_small", "258"),
        ("train:6:wordpiece", "vocabulary_too_small", "7"),
    ],
)
def test_invalid_training_option_is_rejected(option: str, code: str, value: str) -> None:
    with rejects(code, value):
        parse_training(option)


def test_invalid_tokenizer_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with rejects("tokenizer_not_readable", "a.json"):
        import_tokenizer(tmp_path / "a.json", None, tmp_path / "b.json")
    with rejects("tokenizer_missing", "none.json"):
        import_tokenizer(tmp_path / "none.json", None, tmp_path / "b.json")


def test_unknown_end_token_is_rejected(tmp_path: Path) -> None:
    with rejects("token_missing", "<eot>", "a.json"):
        import_tokenizer(write_tokenizer(tmp_path / "a.json", "?", "a"), "<eot>", tmp_path / "b.json")


def test_documents_start_with_the_token_that_the_tokenizer_adds(tmp_path: Path) -> None:
    """As Llama 3; its post-processor adds the token to each text."""
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    without = import_tokenizer(tmp_path / "tokenizer.json", None, tmp_path / "copy.json")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = import_tokenizer(tmp_path / "tokenizer.json", None, tmp_path / "copy.json")
    assert (without.start, vocabulary.start) == (None, 0)
    assert [ids.tolist() for ids in vocabulary.encode([Document("a", b"a")])] == [[0, 2, 1]]


def test_trained_tokenizer_loads_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    train(lambda: ["some text for it"], 300, False, tmp_path / "trained.json")
    vocabulary = import_tokenizer(tmp_path / "trained.json", None, tmp_path / "tokenizer.json")
    files = tokenizer_files(vocabulary, None)
    assert files.keys() == {"tokenizer.json", "tokenizer_config.json"}
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert (loaded.eos_token_id, loaded.eos_token) == (vocabulary.end, "<|endoftext|>")
    assert loaded.decode(loaded("some text")["input_ids"]) == "some text"
