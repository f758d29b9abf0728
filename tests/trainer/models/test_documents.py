"""Attention within documents: the boundaries for `varlen_attn`, which runs on GPUs only, and the mask agree."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trainer.models.documents import document_mask, positions_in_documents, varlen_boundaries

LENGTH = 16
# Of two sequences: several documents, and a document that is a whole sequence.
BOUNDARIES = torch.tensor([0, 3, 4, 11, 16, 32], dtype=torch.int32)


def attend_by_document(queries: Tensor, keys: Tensor, values: Tensor, boundaries: Tensor) -> Tensor:
    """Return what `varlen_attn` computes with a window of (-1, 0): causal, aligned at the last query and key."""
    (first_query, *query_ends), (first_key, *key_ends) = boundaries.tolist()
    outputs = []
    for query_end, key_end in zip(query_ends, key_ends, strict=True):
        count, known = query_end - first_query, key_end - first_key
        if count:
            mask = torch.ones(count, known, dtype=torch.bool).tril(known - count)
            rows = queries[first_query:query_end].transpose(0, 1)
            known_keys, known_values = (each[first_key:key_end].transpose(0, 1) for each in (keys, values))
            attended = functional.scaled_dot_product_attention(rows, known_keys, known_values, mask)
            outputs.append(attended.transpose(0, 1))
        first_query, first_key = query_end, key_end
    return torch.cat(outputs)


@pytest.mark.parametrize(("start", "stop"), [(0, 16), (0, 4), (4, 8), (8, 12), (12, 16), (2, 13)])
def test_attention_by_document_equals_that_with_a_mask(start: int, stop: int) -> None:
    torch.manual_seed(0)
    queries = torch.randn(2, 3, stop - start, 8)  # (batch, heads, length, width)
    keys, values = torch.randn(2, 2, 3, stop, 8)
    mask = document_mask(BOUNDARIES, 2, LENGTH, start, stop)
    expected = functional.scaled_dot_product_attention(queries, keys, values, mask)
    boundaries = varlen_boundaries(BOUNDARIES, 2, LENGTH, start, stop)
    packed = [each.transpose(1, 2).flatten(0, 1) for each in (queries, keys, values)]
    actual = attend_by_document(packed[0], packed[1], packed[2], boundaries)
    torch.testing.assert_close(actual, expected.transpose(1, 2).flatten(0, 1))


def test_positions_start_again_in_each_document() -> None:
    first = [0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]
    assert positions_in_documents(BOUNDARIES, 2, LENGTH).tolist() == [first, list(range(16))]
