"""Tokenizers: bytes, a tokenizer.json of any model, or a tokenizer that is trained on the text itself."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainer.export.model_files import tokenizer_files_in
from trainer.prepare.documents import Document
from trainyard.errors import InputError, Problem

Dtype = Literal["uint8", "uint16", "uint32"]
TokenIds = npt.NDArray[np.unsignedinteger[Any]]
TOKENIZER_FILE = "tokenizer.json"  # key next to the index
BYTES_END = 0  # a byte that text does not contain
_END_TOKEN = "<|endoftext|>"  # noqa: S105  no password
# Common names of these tokens, used if tokenizer_config.json does not define them.
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_START_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")
_MASK_NAMES = ("[MASK]", "<mask>", "<|mask|>")
_UNKNOWN_TOKEN = "[UNK]"  # noqa: S105  no password
_BERT_TOKENS = ("[PAD]", _UNKNOWN_TOKEN, "[CLS]", "[SEP]", "[MASK]")
_ALPHABET_SIZE = 1000  # characters of a WordPiece, as in the trainers for BERT; rarer characters become [UNK]
_MAX_CHARACTERS = 1 << 20  # to tokenize in one call, which needs about 150 bytes per token
_TRAINED = re.compile(r"train:(\d+)(:wordpiece)?")


@dataclass(frozen=True)
class Vocabulary:
    """Properties of a tokenizer that the trainer needs. `file` is a tokenizer.json; None for bytes."""

    file: Path | None
    size: int
    end: int
    mask: int | None
    start: int | None = None  # token at the start of documents, if the tokenizer adds one

    @property
    def dtype(self) -> Dtype:
        """Smallest type that holds all token ids."""
        return "uint8" if self.size <= 1 << 8 else "uint16" if self.size <= 1 << 16 else "uint32"

    @property
    def width(self) -> int:
        """Size of a stored token, in bytes."""
        return np.dtype(self.dtype).itemsize

    @property
    def sha256(self) -> str:
        """SHA-256 of the tokenizer's file."""
        return hashlib.sha256(self.file.read_bytes() if self.file else b"").hexdigest()

    @cached_property
    def _tokenizer(self) -> Any:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the work is divided among processes, not threads
        return load(self.file) if self.file else None

    def encode(self, batch: Sequence[Document]) -> list[TokenIds]:
        """Return the token ids of each document, followed by the end token, and preceded by the start token if any."""
        if self.file is None:
            end = np.array([self.end], np.uint8)
            return [np.concatenate([np.frombuffer(document.raw, np.uint8), end]) for document in batch]
        split = [list(_split(document.text)) for document in batch]
        end, ids = np.array([self.end], self.dtype), self._encode([text for texts in split for text in texts])
        start = np.array([] if self.start is None else [self.start], self.dtype)
        return [np.concatenate([start, *(next(ids) for _ in texts), end]) for texts in split]

    def _encode(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        for batch in _batches(texts):
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(encoding.ids, self.dtype)


BYTES = Vocabulary(None, 256, BYTES_END, None)


def _split(text: str) -> Iterator[str]:
    """Split a long text into texts that can be tokenized in one call, at line ends if possible."""
    start = 0
    while len(text) - start > _MAX_CHARACTERS:
        stop = text.rfind("\n", start, start + _MAX_CHARACTERS) + 1 or start + _MAX_CHARACTERS
        yield text[start:stop]
        start = stop
    yield text[start:] if start else text


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Group texts into batches of at most _MAX_CHARACTERS, or of one text."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _MAX_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def parse_training(option: str) -> tuple[int, bool] | None:
    """Parse `train:VOCAB[:wordpiece]`: the size, and whether it is a WordPiece. Returns None for other options.

    Raises InputError if the option is malformed or the size is too small.
    """
    if not option.startswith("train:"):
        return None
    match = _TRAINED.fullmatch(option)
    if not match:
        raise InputError(
            [_problem(option, "is malformed", "Write train:32000 or train:32000:wordpiece", "invalid_tokenizer_option")]
        )
    size, word_piece = int(match[1]), bool(match[2])
    minimum = len(_BERT_TOKENS) + 2 if word_piece else 256 + 2
    if size < minimum:
        raise InputError(
            [_problem(option, f"a vocabulary of {size} is too small", f"Use {minimum} or more", "vocabulary_too_small")]
        )
    return size, word_piece


def train(texts: Callable[[], Iterable[str]], size: int, word_piece: bool, target: Path) -> None:
    """Train a byte-level BPE, or a cased WordPiece as in BERT, and write it to `target`. It is deterministic."""
    target.write_text(_train_word_piece(texts, size) if word_piece else _train_byte_level(texts(), size))


def _train_byte_level(texts: Iterable[str], size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[_END_TOKEN], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def _train_word_piece(texts: Callable[[], Iterable[str]], size: int) -> str:
    """Train a WordPiece. The characters inside words get their ids before the training.

    The library would number them in the order of a hash map, which differs in each run, and of equally frequent pairs
    it merges the pair with the lower ids.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=_UNKNOWN_TOKEN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(text)
    visible = (character for character in counts if character.isprintable() and not character.isspace())
    frequent = sorted(visible, key=lambda character: (-counts[character], character))
    alphabet = sorted(frequent[: min(_ALPHABET_SIZE, (size - len(_BERT_TOKENS)) // 2)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*_BERT_TOKENS, *(f"##{character}" for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in _BERT_TOKENS]
    return json.dumps(content, ensure_ascii=False)


def load(file: Path) -> Any:
    """Load a tokenizers.Tokenizer, without truncation or padding. Raises InputError if the file is no tokenizer."""
    from tokenizers import Tokenizer

    if not file.is_file():
        raise InputError(
            [
                _problem(
                    str(file),
                    "there is no such file",
                    "Name a tokenizer.json, bytes, or train:VOCAB",
                    "tokenizer_missing",
                )
            ]
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise InputError(
            [_problem(str(file), f"can't be read: {error}", "Name a model's tokenizer.json", "tokenizer_not_readable")]
        ) from None
    tokenizer.no_truncation()  # a file for BERT often has 512
    tokenizer.no_padding()
    return tokenizer


def import_tokenizer(file: Path, end: str | None, target: Path) -> Vocabulary:
    """Read a tokenizer.json and write it to `target`, with an end token added if it has none.

    `end` is the token that ends documents; None: eos_token or sep_token of the tokenizer_config.json in the same
    folder, or a token with a common name. Raises InputError if the file can't be read or has no token `end`.
    """
    tokenizer = load(file)
    _require_token(tokenizer, end, str(file))
    special_tokens = _read_config(file.with_name("tokenizer_config.json"))
    end_names = [end] if end else [*(special_tokens.get(key) for key in ("eos_token", "sep_token")), *_END_NAMES]
    if _first_id(tokenizer, end_names) is None:
        tokenizer.add_special_tokens([_END_TOKEN])
        end_names.append(_END_TOKEN)
    end_id = _first_id(tokenizer, end_names)
    mask_id = _first_id(tokenizer, [special_tokens.get("mask_token"), *_MASK_NAMES])
    start_id = _first_id(tokenizer, [special_tokens.get("bos_token"), *_START_NAMES])
    adds_start = tokenizer.encode("").ids[:1] == [start_id]  # by its post-processor
    assert end_id is not None
    target.write_text(tokenizer.to_str())
    size = max(tokenizer.get_vocab().values()) + 1
    return Vocabulary(target, size, end_id, mask_id, start_id if adds_start else None)


def tokenizer_files(vocabulary: Vocabulary, source: Path | None) -> dict[str, Path]:
    """Return the files with which transformers loads the tokenizer, by their names in the dataset.

    `source`: the tokenizer.json of a model; None for a tokenizer that was trained, whose settings are written next to
    its file.
    """
    if vocabulary.file is None:
        return {}
    files = {TOKENIZER_FILE: vocabulary.file}
    if source is not None and (config := source.with_name("tokenizer_config.json")).is_file():
        return tokenizer_files_in(source.parent) | files
    tokenizer = load(vocabulary.file)
    special = {"eos_token": vocabulary.end, "bos_token": vocabulary.start, "mask_token": vocabulary.mask}
    names = {key: tokenizer.id_to_token(token) for key, token in special.items() if token is not None}
    config = vocabulary.file.with_name("tokenizer_config.json")
    config.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}, indent=1))
    return files | {config.name: config}


def require_tokenizer(option: str, end: str | None) -> None:
    """Raise InputError if the option names no tokenizer, or a tokenizer without a token `end`.

    The end token of a tokenizer that is to be trained is checked after the training.
    """
    if option == "bytes":
        if end is not None:
            reason = "bytes have no such token"
            raise InputError([Problem("--end", end, reason, "Remove the option", "token_missing")])
    elif not parse_training(option):
        _require_token(load(Path(option)), end, option)


def _require_token(tokenizer: Any, end: str | None, name: str) -> None:
    if end is not None and tokenizer.token_to_id(end) is None:
        reason = f"{name} has no such token"
        raise InputError([Problem("--end", end, reason, "Name one of its tokens", "token_missing")])


def _read_config(file: Path) -> dict[str, Any]:
    """Return the special tokens of a tokenizer_config.json by key; empty if there is no such file."""
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}


def _first_id(tokenizer: Any, names: Sequence[Any]) -> int | None:
    """Return the id of the first name that is a token."""
    ids = [tokenizer.token_to_id(name) for name in names if isinstance(name, str)]
    return next((id for id in ids if id is not None), None)


def _problem(value: str, reason: str, fix: str, code: str) -> Problem:
    return Problem("--tokenizer", value, reason, fix, code)
