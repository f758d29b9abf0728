"""Conversations: their responses, and packed rows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.problems import rejects
from tests.trainer.prepare.chat_models import CHATML, write_tokenizer
from trainer.prepare.chats import ChatOptions, prepare_chats
from trainer.prepare.conversations import ChatTokenizer, Conversation
from trainer.prepare.dataset import Request, Result
from trainer.prepare.documents import ReadOptions
from trainer.prepare.packing import pack
from trainer.prepare.sources import SourceFile
from trainer.prepare.tokens import TextOptions
from trainyard.models.dataset import HAS_LOSS, STARTS_DOCUMENT, TOKEN_BITS, Shard

FILE = SourceFile("a.jsonl", "a.jsonl", 1, 0)
# As Qwen 3: thoughts of responses before the last question are removed, and the last response has an empty thought.
THINKING = (
    "{% set last = namespace(question=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > last.question %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat(*contents: str) -> list[dict[str, str]]:
    """Return messages of a user and an assistant in turn."""
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


def encode(folder: Path, messages: list[dict[str, str]], template: str | None = None) -> npt.NDArray[np.uint32]:
    conversation = Conversation(messages, b"", lambda: "line 1")
    return ChatTokenizer(folder, template).encode(conversation, FILE)


def responses(folder: Path, tokens: npt.NDArray[np.uint32]) -> str:
    """Return the text of the tokens that have a loss."""
    tokenizer = ChatTokenizer(folder, None)._tokenizer
    return str(tokenizer.decode([int(token) & TOKEN_BITS for token in tokens if token & HAS_LOSS]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model")


def test_responses_and_the_tokens_that_end_them_have_a_loss(folder: Path) -> None:
    tokens = encode(folder, [{"role": "system", "content": "Be short."}, *chat("One?", "Two.", "Three?", "Four ü.")])
    assert responses(folder, tokens) == "Two.<|im_end|>Four ü.<|im_end|>"
    assert [bool(token & STARTS_DOCUMENT) for token in tokens[:3]] == [True, False, False]


def test_template_may_change_former_responses(folder: Path) -> None:
    tokens = encode(folder, chat("One?", " Two. ", "Three?", "Four."), THINKING)
    assert responses(folder, tokens) == "Two.<|im_end|><think>\n\n</think>\n\nFour.<|im_end|>"


@pytest.mark.parametrize(
    ("template", "response"),
    [(CHATML.replace("content }}", "content }} "), "Two."), (CHATML, "Two. "), (CHATML, "Two.\n\n")],
)
def test_white_space_before_the_end_of_a_response(folder: Path, template: str, response: str) -> None:
    tokens = encode(folder, chat("One?", response), template)
    assert re.fullmatch(r"Two\.\s+<\|im_end\|>", responses(folder, tokens))


@pytest.mark.parametrize("response", ["think", "im", "n"])
def test_response_that_is_part_of_the_text_of_the_template(folder: Path, response: str) -> None:
    tokens = encode(folder, chat("One?", response), THINKING)
    assert responses(folder, tokens) == f"<think>\n\n</think>\n\n{response}<|im_end|>"


def test_response_without_a_token_that_ends_it_is_an_error(folder: Path) -> None:
    with rejects("response_without_end", "message 2 of line 1"):
        encode(folder, chat("One?", "Two."), CHATML.replace("<|im_end|>", ""))


def test_response_that_the_template_moves_is_an_error(folder: Path) -> None:
    with rejects("response_not_in_text", "message 2 of line 1"):
        encode(folder, chat("One?", "Two."), "{% if add_generation_prompt %}x{% endif %}{{ messages[-1].content }}")


def test_error_of_the_template_is_reported(folder: Path) -> None:
    with rejects("conversation_refused", "line 1", "no system messages"):
        encode(folder, chat("One?", "Two."), "{{ raise_exception('no system messages') }}")


def test_items_are_packed_into_few_rows() -> None:
    rows = pack([3, 9, 4, 10, 6, 1], 10)
    assert sorted(sorted(row) for row in rows) == [[0], [1, 5], [2, 4], [3]]


Prepare = Callable[..., Result]


@pytest.fixture
def prepare(tmp_path: Path, folder: Path, request_to: Callable[..., Request]) -> Prepare:
    def run(source: Path, name: str = "out", *, length: int = 63, workers: int = 1, **changes: Any) -> Result:
        reading = ReadOptions("messages", is_text=False)
        text = TextOptions(sources=(str(source),), reading=reading, tokenizer=str(changes.pop("tokenizer", folder)))
        options = ChatOptions(text=text, sequence_length=length, **changes)
        return prepare_chats(options, request_to(name, workers=workers))

    return run


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def rows_of(result: Result, shards: tuple[Shard, ...], length: int = 63) -> npt.NDArray[np.uint32]:
    content = b"".join((Path(result.target) / shard.key).read_bytes() for shard in shards)
    return np.frombuffer(content, dtype="<u4").reshape(-1, length + 1)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    rows = [{"messages": chat(f"Number {n}?", "It is " + "very " * (n % 5) + f"{n}.")} for n in range(60)]
    return write_lines(tmp_path / "chats/a.jsonl", rows)


def test_each_conversation_is_in_one_row(prepare: Prepare, chats: Path, folder: Path) -> None:
    result = prepare(chats)
    dataset = result.dataset
    rows = [*rows_of(result, dataset.train), *rows_of(result, dataset.validation)]
    starts = sum(int(((row & STARTS_DOCUMENT) != 0).sum()) for row in rows)
    padded = sum(bool(row[-1] & TOKEN_BITS == 0) for row in rows)  # padding is <|endoftext|>, token 0
    assert starts == 60 + padded
    text = "".join(responses(folder, row) for row in rows)
    assert sorted(text.split("<|im_end|>")[:-1]) == sorted(f"It is {'very ' * (n % 5)}{n}." for n in range(60))
    assert all(row[0] & STARTS_DOCUMENT for row in rows)
    assert result.samples == 60


def test_dataset_has_the_files_of_the_tokenizer(prepare: Prepare, chats: Path, tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text(THINKING)
    result = prepare(chats, chat_template=template)
    target = Path(result.target)
    assert (target / "chat_template.jinja").read_text() == THINKING
    assert {"tokenizer.json", "tokenizer_config.json"} <= {file.name for file in target.iterdir()}


def test_result_does_not_depend_on_the_number_of_processes(prepare: Prepare, chats: Path) -> None:
    datasets = [prepare(chats, f"out-{workers}", workers=workers).dataset for workers in (1, 2)]
    assert datasets[0].train == datasets[1].train


def test_long_conversations_are_truncated_and_counted(prepare: Prepare, chats: Path) -> None:
    assert prepare(chats, length=40).truncated == 48


def test_prompts_with_completions_are_conversations(prepare: Prepare, tmp_path: Path, folder: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": f"{n}!"} for n in range(40)]
    result = prepare(write_lines(tmp_path / "pairs/a.jsonl", rows))
    text = "".join(responses(folder, row) for row in rows_of(result, result.dataset.train))
    assert text.count("!<|im_end|>") > 20


def test_parquet_has_the_same_rows_as_json_lines(prepare: Prepare, chats: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in chats.read_text().splitlines()]
    file = tmp_path / "table/a.parquet"
    file.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), file)
    sets = [
        {row.tobytes() for row in rows_of(result, result.dataset.train)}
        for result in (prepare(chats), prepare(file, "parquet"))
    ]
    assert sets[0] == sets[1]


@pytest.mark.parametrize(
    ("row", "code", "text"),
    [
        ({"text": "a"}, "messages_missing", "line 2 has no list of messages in 'messages': it has text"),
        ({"messages": [{"role": "user"}]}, "invalid_message", "line 2"),
        ({"messages": chat("only a question")}, "response_missing", "line 2"),
        ({"messages": []}, "response_missing", "no message"),
    ],
)
def test_invalid_row_is_an_error(prepare: Prepare, tmp_path: Path, row: Any, code: str, text: str) -> None:
    file = write_lines(tmp_path / "bad/a.jsonl", [{"messages": chat("a", "b")}, row])
    with rejects(code, text):
        prepare(file)


def test_tokenizer_without_a_template_is_refused(prepare: Prepare, chats: Path, tmp_path: Path) -> None:
    with rejects("chat_template_missing", "--chat-template"):
        prepare(chats, tokenizer=write_tokenizer(tmp_path / "base", template=None))
    with rejects("tokenizer_missing", str(tmp_path)):
        prepare(chats, tokenizer=tmp_path)
