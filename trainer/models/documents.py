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


def positions_in_documents(cu_seqlens: Tensor, batch: int, length: int) -> Tensor:
    """Return (batch, length): the position of each token in its document. Each sequence starts a document."""
    positions = torch.arange(batch * length, dtype=torch.int32, device=cu_seqlens.device)
    starts = cu_seqlens[torch.searchsorted(cu_seqlens, positions, right=True) - 1]
    return (positions - starts).view(batch, length).long()


def document_mask(cu_seqlens: Tensor, x: Tensor, length: int, head_size: int) -> Tensor:
    """Return `cu_seqlens` if `varlen_attn` computes these heads, else a causal mask (batch, 1, length, length).

    The kernels of `varlen_attn` skip other documents. x: the residual stream (batch, ...) of sequences of `length`
    tokens. The kernels compute 16 bits, on GPUs since Ampere, and heads of a multiple of 8 and at most 256: README of
    github.com/Dao-AILab/flash-attention.
    """
    has_16_bits = x.is_cuda and (x.dtype != torch.float32 or torch.is_autocast_enabled("cuda"))
    if has_16_bits and head_size % 8 == 0 and head_size <= 256 and torch.cuda.get_device_capability(x.device) >= (8, 0):
        # The number of documents differs between micro-batches; compiled blocks are not compiled again for each.
        torch._dynamo.maybe_mark_dynamic(cu_seqlens, 0)
        return cu_seqlens
    return same_document(cu_seqlens, x.size(0), length, x.device).tril()
