"""Conversations: messages with roles, as text by a chat template, and as tokens with the responses marked."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer.prepare.documents import FilePart, ReadOptions, read_rows
from trainer.prepare.packing import Tokens
from trainer.prepare.sources import SourceFile
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import HAS_LOSS, STARTS_DOCUMENT

Message = dict[str, Any]
_RESPONSE = "assistant"  # role of the messages that the model is trained to write
_MARK = "\ue000"  # a character for private use: a chat template does not write it itself


@dataclass(frozen=True)
class Conversation:
    """Messages, the same as JSON, and a function that returns their position in the source, for error messages."""

    messages: list[Message]
    raw: bytes
    position: Callable[[], str]


def read_conversations(part: FilePart, options: ReadOptions) -> Iterator[Conversation]:
    """Yield the conversations of a part. Raises InputError if a row has no valid messages."""
    for row, position in read_rows(part, options):
        messages: Any = row.get(options.field)
        if messages is None and {"prompt", "completion"} <= row.keys():
            messages = [
                {"role": "user", "content": row["prompt"]},
                {"role": _RESPONSE, "content": row["completion"]},
            ]
        _require_messages(messages, row, options.field, part.file, position)
        raw = json.dumps(messages, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        yield Conversation(messages, raw, position)


def _require_messages(
    messages: Any, row: dict[str, Any], field: str, file: SourceFile, position: Callable[[], str]
) -> None:
    if not isinstance(messages, list):
        fields = ", ".join(row) or "no field"
        reason = f"{position()} has no list of messages in {field!r}: it has {fields}"
        raise InputError([file.problem(reason, "Name the field of the messages with --field", "messages_missing")])
    for message in messages:
        has_text = isinstance(message, dict) and isinstance(message.get("content"), str)
        if not has_text or not isinstance(message.get("role"), str):
            reason = f"{position()} has a message without a role and a text as content: {json.dumps(message)[:60]}"
            raise InputError([file.problem(reason, "Correct the message", "invalid_message")])
    if not any(message["role"] == _RESPONSE for message in messages):
        roles = ", ".join(dict.fromkeys(message["role"] for message in messages)) or "no message"
        reason = f"{position()} has no response, a message of the role {_RESPONSE}: it has {roles}"
        raise InputError([file.problem(reason, "Correct the roles", "response_missing")])


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with a chat template. It is pickled for the processes: the tokenizer is loaded on its first use."""

    folder: Path
    template: str | None  # None: that of the tokenizer

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(self.folder), local_files_only=True)
        if self.template is not None:
            tokenizer.chat_template = self.template
        return tokenizer

    @cached_property
    def _added_tokens(self) -> Tokens:
        return np.array(list(self._tokenizer.added_tokens_decoder), dtype=np.uint32)

    def require(self) -> None:
        """Raise InputError if the folder has no tokenizer, or if there is no chat template."""
        if not (self.folder / "tokenizer.json").is_file():
            fix = "Set --tokenizer to the folder of a model"
            raise InputError([_problem(self.folder, "has no tokenizer.json", fix, "tokenizer_missing")])
        try:
            template = self._tokenizer.chat_template
        except Exception as error:  # transformers and tokenizers raise no narrower type
            reason = f"can't be read: {' '.join(str(error).split())[:300]}"
            problem = _problem(
                self.folder, reason, "Set --tokenizer to the folder of a model", "tokenizer_not_readable"
            )
            raise InputError([problem]) from None
        if not template:
            fix = "Set --chat-template, or --tokenizer to the folder of a model that is trained for chats"
            raise InputError([_problem(self.folder, "has no chat template", fix, "chat_template_missing")])

    @property
    def size(self) -> int:
        """Number of token ids."""
        return int(max(self._tokenizer.get_vocab().values())) + 1

    @property
    def end(self) -> int | None:
        """Id of the token that ends a text, eos_token."""
        end: int | None = self._tokenizer.eos_token_id
        return end

    @property
    def padding(self) -> int:
        """Id of the token for padding. It has no effect on the training."""
        padding: int | None = self._tokenizer.pad_token_id
        if padding is None:
            padding = self.end
        return 0 if padding is None else padding

    def encode(self, conversation: Conversation, file: SourceFile) -> Tokens:
        """Return the tokens of a conversation, with flags: those of responses have a loss.

        The token that ends a response has a loss, too. Raises InputError if the template refuses the conversation, if
        its responses can't be found in the text, or if no special token ends them.
        """
        text, responses = self._render(conversation, file)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens = np.array(encoded["input_ids"], dtype=np.uint32)
        starts, ends = np.array(encoded["offset_mapping"], dtype=np.int64).T
        special = np.isin(tokens, self._added_tokens)
        has_loss = np.zeros(len(tokens), dtype=bool)
        for number, start, stop in responses:
            first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, stop)
            # The model also learns the white space between a response and the token that ends it.
            while last < len(tokens) and not special[last] and not text[stop : ends[last]].strip():
                last += 1
            if last == len(tokens) or not special[last] or text[stop : starts[last]].strip():
                reason = f"the chat template writes no special token after {_position(conversation, number)}"
                fix = "Set --chat-template to a template that ends each response with one, such as eos_token"
                raise InputError([file.problem(reason, fix, "response_without_end")])
            has_loss[first : last + 1] = True
        has_loss[:1] = False  # nothing predicts the first token
        tokens[has_loss] |= np.uint32(HAS_LOSS)
        tokens[:1] |= np.uint32(STARTS_DOCUMENT)
        return tokens

    def _render(self, conversation: Conversation, file: SourceFile) -> tuple[str, list[tuple[int, int, int]]]:
        """Return the text, and of each response the index of its message and its start and stop in the text."""
        messages = conversation.messages
        text = self._apply(messages, conversation, file)
        responses = []
        for number, message in enumerate(messages):
            if message["role"] != _RESPONSE:
                continue
            # What the model gets before it writes this response. A template may change former messages, but in the same
            # way in the whole conversation.
            before = self._apply(messages[:number], conversation, file, add_generation_prompt=True)
            content = message["content"].strip()
            position = _skip_space(text, len(before))
            if not text.startswith(content, position):  # the template writes more before it, such as an empty thought
                marked = [*messages[:number], {**message, "content": _MARK}, *messages[number + 1 :]]
                position = _skip_space(text, self._apply(marked, conversation, file).find(_MARK))
            if not text.startswith(before) or not text.startswith(content, position) or position < len(before):
                where = _position(conversation, number)
                reason = f"the chat template does not write the text of {where} after the generation prompt"
                fix = "Set --chat-template to a template that does"
                raise InputError([file.problem(reason, fix, "response_not_in_text")])
            responses.append((number, len(before), position + len(content)))
        return text, responses

    def _apply(self, messages: Sequence[Message], conversation: Conversation, file: SourceFile, **options: Any) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
        except Exception as error:  # errors of jinja2, and those that a template raises
            reason = f"the chat template refuses {conversation.position()}: {' '.join(str(error).split())[:300]}"
            fix = "Correct the messages, or set --chat-template to another template"
            raise InputError([file.problem(reason, fix, "conversation_refused")]) from None
        return text


def _position(conversation: Conversation, number: int) -> str:
    return f"message {number + 1} of {conversation.position()}"


def _skip_space(text: str, position: int) -> int:
    """Return the position of the first character that is no white space; -1 if `position` is."""
    return position if position < 0 else len(text) - len(text[position:].lstrip())


def _problem(folder: Path, reason: str, fix: str, code: str) -> Problem:
    return Problem("--tokenizer", str(folder), reason, fix, code)
