"""Packs conversations into rows of equal length, so that few tokens are padding."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from trainyard.models.dataset import STARTS_DOCUMENT

Tokens = npt.NDArray[np.uint32]


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Return the rows: for each, the numbers of the items in it. No length is above `row_tokens`.

    Best fit decreasing: each item, the longest first, is put into the row with the least remaining space in which it
    fits.
    """
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # remaining tokens of rows that are not full, and the row, sorted
    numbers = count()
    for item in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        position = bisect_left(spaces, (lengths[item], 0))
        if position < len(spaces):
            space, row = spaces.pop(position)
        else:
            space, row = row_tokens, next(numbers)
            rows.append([])
        rows[row].append(item)
        if space > lengths[item]:
            insort(spaces, (space - lengths[item], row))
    return rows


def pack_rows(conversations: Sequence[Tokens], row_tokens: int, padding: int) -> Iterator[Tokens]:
    """Yield rows of `row_tokens` tokens with flags (trainyard/models/dataset.py); padding is a document of its row."""
    for numbers in pack([len(tokens) for tokens in conversations], row_tokens):
        row = np.full(row_tokens, padding, dtype=np.uint32)
        position = 0
        for number in numbers:
            tokens = conversations[number]
            row[position : position + len(tokens)] = tokens
            position += len(tokens)
        if position < row_tokens:
            row[position] |= STARTS_DOCUMENT
        yield row
