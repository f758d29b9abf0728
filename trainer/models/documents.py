"""Attention within documents: several documents share a sequence, and no token attends to another document.

`cu_seqlens`: int32 (documents + 1,), the first token of each document in the micro-batch, then the number of tokens.
The name is that of FlashAttention.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def document_numbers(cu_seqlens: Tensor, batch: int, length: int) -> Tensor:
    """Return (batch, length): the number of each token's document in the micro-batch, from 1."""
    positions = torch.arange(batch * length, dtype=torch.int32, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens, positions, right=True).view(batch, length)


def positions_in_documents(cu_seqlens: Tensor, batch: int, length: int) -> Tensor:
    """Return (batch, length): the position of each token in its document. Each sequence starts a document."""
    starts = cu_seqlens[document_numbers(cu_seqlens, batch, length) - 1]
    return torch.arange(batch * length, device=cu_seqlens.device).view(batch, length) - starts


def attention_masks(
    cu_seqlens: Tensor | None, x: Tensor, length: int, chunks: Sequence[tuple[int, int]], head_size: int
) -> list[Tensor | None]:
    """Return for each chunk (start, stop) of queries how it attends to the keys before `stop`.

    None: causal attention within one whole sequence. Boolean (batch, 1, stop - start, stop): the mask. int32
    (2, documents + 1): `cu_seq_q` and `cu_seq_k` of `varlen_attn`, whose kernels skip other documents.
    x: the residual stream (batch, ...) of sequences of `length` tokens, or of a part of each.
    """
    if cu_seqlens is None:
        if tuple(chunks) == ((0, length),):
            return [None]
        cu_seqlens = torch.arange(x.size(0) + 1, dtype=torch.int32, device=x.device) * length
    function = varlen_boundaries if _has_varlen_attention(x, head_size) else document_mask
    return [function(cu_seqlens, x.size(0), length, start, stop) for start, stop in chunks]


def document_mask(cu_seqlens: Tensor, batch: int, length: int, start: int, stop: int) -> Tensor:
    """Return (batch, 1, stop - start, stop): whether a query attends to a key: of its document, and not later."""
    numbers = document_numbers(cu_seqlens, batch, length).unsqueeze(1)
    return (numbers[:, :, start:stop, None] == numbers[:, :, None, :stop]).tril(start)


def varlen_boundaries(cu_seqlens: Tensor, batch: int, length: int, start: int, stop: int) -> Tensor:
    """Return (2, documents + 1), int32: first tokens of the documents among the queries and among the keys.

    The queries are the tokens from `start` to `stop` of each sequence, the keys those before `stop`. Causal attention
    of `varlen_attn` aligns the last query of a document with its last key.
    """
    rows, positions = cu_seqlens // length, cu_seqlens % length
    queries = rows * (stop - start) + (positions - start).clamp(0, stop - start)
    boundaries = torch.stack([queries, rows * stop + positions.clamp(max=stop)]).int()
    # The number of documents differs between micro-batches; compiled blocks are not compiled again for each.
    torch._dynamo.maybe_mark_dynamic(boundaries, 1)
    return boundaries


def _has_varlen_attention(x: Tensor, head_size: int) -> bool:
    """Whether `varlen_attn` computes such heads: in 16 bits, of a multiple of 8 and at most 256, since Ampere.

    Source: README of github.com/Dao-AILab/flash-attention.
    """
    has_16_bits = x.is_cuda and (x.dtype != torch.float32 or torch.is_autocast_enabled("cuda"))
    if not has_16_bits or head_size % 8 or head_size > 256:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)
