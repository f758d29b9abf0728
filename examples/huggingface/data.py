"""Text as sequences of bytes, and the model that is trained on them."""

from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 256  # each byte is a token, so that no tokenizer is downloaded


class ByteSequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of `length` bytes. The labels are the inputs: the model shifts them."""

    def __init__(self, text: bytes, length: int) -> None:
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)
        if not len(self.rows):
            raise SystemExit(f"the text has {len(tokens)} bytes, fewer than --length {length}")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def create_model(length: int) -> Any:
    """Return a small GPT-2 with random weights, the same on every rank."""
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=length, n_embd=64, n_layer=2, n_head=4)
    return GPT2LMHeadModel(config)
