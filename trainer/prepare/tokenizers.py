"""How text becomes token ids: bytes, a tokenizer.json of any model, or one trained on the text itself."""

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

from trainer.prepare.documents import Document
from trainyard.base import InputError, Problem

Dtype = Literal["uint8", "uint16", "uint32"]
Ids = npt.NDArray[np.unsignedinteger[Any]]
FILE = "tokenizer.json"  # its name beside the index
END_OF_BYTES = 0  # a byte that text does not hold
_END = "<|endoftext|>"
# What models call their tokens, where no tokenizer_config.json says which one it is.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_MASKS = ("[MASK]", "<mask>", "<|mask|>")
_UNKNOWN = "[UNK]"
_BERT = ("[PAD]", _UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
_ALPHABET = 1000  # characters of a WordPiece, as BERT's trainers have it; rarer ones become [UNK]
_AT_ONCE = 1 << 20  # characters that are tokenized at once: a token takes some 150 bytes on the way
_TRAINED = re.compile(r"train:(\d+)(:wordpiece)?")


@dataclass(frozen=True)
class Vocabulary:
    """What the trainer must know of a tokenizer. `file` is a tokenizer.json, none for bytes."""

    file: Path | None
    size: int
    end: int
    mask: int | None

    @property
    def dtype(self) -> Dtype:
        return "uint8" if self.size <= 1 << 8 else "uint16" if self.size <= 1 << 16 else "uint32"

    @property
    def width(self) -> int:
        """Bytes of one token in the files."""
        return np.dtype(self.dtype).itemsize

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes() if self.file else b"").hexdigest()

    @cached_property
    def _library(self) -> Any:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the work; threads of each would be in the way
        return load(self.file) if self.file else None

    def encode(self, batch: Sequence[Document]) -> list[Ids]:
        """The token ids of each document, its end among them. No token but the end is added."""
        if self.file is None:
            end = np.array([self.end], np.uint8)
            return [np.concatenate([np.frombuffer(document.raw, np.uint8), end]) for document in batch]
        cut = [list(_cut(document.text)) for document in batch]
        end, ids = np.array([self.end], self.dtype), self._ids([text for texts in cut for text in texts])
        return [np.concatenate([*(next(ids) for _ in texts), end]) for texts in cut]

    def _ids(self, texts: Sequence[str]) -> Iterator[Ids]:
        for some in _together(texts):
            for encoding in self._library.encode_batch_fast(some, add_special_tokens=False):
                yield np.array(encoding.ids, self.dtype)


BYTES = Vocabulary(None, 256, END_OF_BYTES, None)


def _cut(text: str) -> Iterator[str]:
    """A long text in parts that can be tokenized at once, cut at the ends of lines where there are any."""
    start = 0
    while len(text) - start > _AT_ONCE:
        stop = text.rfind("\n", start, start + _AT_ONCE) + 1 or start + _AT_ONCE
        yield text[start:stop]
        start = stop
    yield text[start:] if start else text


def _together(texts: Sequence[str]) -> Iterator[list[str]]:
    """As many at once as memory is meant for, and at least one."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and size + len(text) > _AT_ONCE:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield some


def trained(words: str) -> tuple[int, bool] | None:
    """The size and kind (WordPiece?) that `train:VOCAB[:wordpiece]` asks for; none where it is something else.

    Raises InputError where it is not to be understood.
    """
    if not words.startswith("train:"):
        return None
    matched = _TRAINED.fullmatch(words)
    if not matched:
        raise InputError([_problem(words, "is not to be understood", "Write train:32000 or train:32000:wordpiece")])
    size, word_piece = int(matched[1]), bool(matched[2])
    least = len(_BERT) + 2 if word_piece else 256 + 2
    if size < least:
        raise InputError([_problem(words, f"a vocabulary of {size} is too small", f"Make it {least} or more")])
    return size, word_piece


def train(texts: Callable[[], Iterable[str]], size: int, word_piece: bool, target: Path) -> None:
    """A byte-level BPE, or a cased WordPiece as BERT has, into the file `target`: the same each time."""
    target.write_text(_word_piece(texts, size) if word_piece else _byte_level(texts(), size))


def _byte_level(texts: Iterable[str], size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def _word_piece(texts: Callable[[], Iterable[str]], size: int) -> str:
    """Characters inside words get their ids before the training.

    The library numbers them as it meets them in a hash map, another order each time, and of pairs that are equally
    frequent merges the one of lower ids.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(text)
    frequent = sorted((one for one in counts if one.isprintable() and not one.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(frequent[: min(_ALPHABET, (size - len(_BERT)) // 2)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*_BERT, *(f"##{one}" for one in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in _BERT]
    return json.dumps(content, ensure_ascii=False)


def load(file: Path) -> Any:
    """A tokenizers.Tokenizer that neither cuts nor pads. Raises InputError where the file is none."""
    from tokenizers import Tokenizer

    if not file.is_file():
        raise InputError([_problem(str(file), "there is no such file", "Name a tokenizer.json, bytes, or train:VOCAB")])
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise InputError([_problem(str(file), f"can't be read: {error}", "Name a model's tokenizer.json")]) from None
    tokenizer.no_truncation()  # a BERT's file often says 512
    tokenizer.no_padding()
    return tokenizer


def adopt(file: Path, end: str | None, target: Path) -> Vocabulary:
    """Read a tokenizer.json and write it to `target`, with an end token where it had none.

    `end` names the token that ends documents; none: eos_token or sep_token of the tokenizer_config.json beside it, else
    one that is commonly called so. Raises InputError where the file can't be read, or has no token `end`.
    """
    tokenizer = load(file)
    _require_token(tokenizer, end, str(file))
    says = _config(file.with_name("tokenizer_config.json"))
    ends = [end] if end else [*(says.get(key) for key in ("eos_token", "sep_token")), *_ENDS]
    if _first(tokenizer, ends) is None:
        tokenizer.add_special_tokens([_END])
        ends.append(_END)
    found, mask = _first(tokenizer, ends), _first(tokenizer, [says.get("mask_token"), *_MASKS])
    assert found is not None
    target.write_text(tokenizer.to_str())
    return Vocabulary(target, max(tokenizer.get_vocab().values()) + 1, found, mask)


def require(words: str, end: str | None) -> None:
    """Raises InputError where `words` name no tokenizer, or none with a token `end`, as far as that is known before one
    is trained."""
    if words == "bytes":
        if end is not None:
            why = "bytes have no such token"
            raise InputError([Problem(key="--end", value=end, why=why, fix="Leave it out")])
    elif not trained(words):
        _require_token(load(Path(words)), end, words)


def _require_token(tokenizer: Any, end: str | None, name: str) -> None:
    if end is not None and tokenizer.token_to_id(end) is None:
        why = f"{name} has no such token"
        raise InputError([Problem(key="--end", value=end, why=why, fix="Name one of its tokens")])


def _config(file: Path) -> dict[str, Any]:
    """The names of tokens by a tokenizer_config.json; empty where there is none."""
    try:
        read = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value.get("content") if isinstance(value, dict) else value for key, value in read.items()}


def _first(tokenizer: Any, names: Sequence[Any]) -> int | None:
    ids = [tokenizer.token_to_id(name) for name in names if isinstance(name, str)]
    return next((id for id in ids if id is not None), None)


def _problem(value: str, why: str, fix: str) -> Problem:
    return Problem(key="--tokenizer", value=value, why=why, fix=fix)
