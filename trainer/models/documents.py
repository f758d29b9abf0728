"""Attention within documents: several documents share a sequence, and no token attends to another document.

`cu_seqlens`: int32 (documents + 1,), the first token of each document in the micro-batch, then the number of tokens.
The name is that of FlashAttention.
"""

import torch
from torch import Tensor


def same_document(cu_seqlens: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Return (batch, 1, length, length): whether two tokens of a sequence are in the same document."""
    positions = torch.arange(batch * length, dtype=torch.int32, device=device)
    numbers = torch.searchsorted(cu_seqlens, positions, right=True).view(batch, 1, length)
    return numbers.unsqueeze(-1) == numbers.unsqueeze(-2)


def document_mask(cu_seqlens: Tensor, x: Tensor, length: int) -> Tensor:
    """Return `cu_seqlens` for `varlen_attn` on a GPU in 16 bits, else a causal mask (batch, 1, length, length).

    The kernels of `varlen_attn` skip other documents. x: the residual stream (batch, ...) of sequences of `length`
    tokens.
    """
    if x.is_cuda and (x.dtype != torch.float32 or torch.is_autocast_enabled("cuda")):
        # The number of documents differs between micro-batches; compiled blocks are not compiled again for each.
        torch._dynamo.maybe_mark_dynamic(cu_seqlens, 0)
        return cu_seqlens
    return same_document(cu_seqlens, x.size(0), length, x.device).tril()
