"""A decoder-only transformer on bytes: RMSNorm, rotary positions, SwiGLU, grouped-query attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contract.training import ModelConfig


def rotary_table(length: int, width: int, theta: float) -> Tensor:
    """(2, length, width): cosines, and sines signed for `rotate`, of every position's angles."""
    frequencies = torch.pow(theta, -torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn each pair (i, i + width/2) of the last dimension by its position's angle."""
    cosines, sines = table[:, : x.size(-2)]
    turned: Tensor = x * cosines + x.roll(x.size(-1) // 2, -1) * sines
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention whose key and value heads each serve several query heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = config.heads, config.kv_heads, config.dim // config.heads
        self.queries = nn.Linear(config.dim, config.dim, bias=False)
        self.keys = nn.Linear(config.dim, self.kv_heads * self.width, bias=False)
        self.values = nn.Linear(config.dim, self.kv_heads * self.width, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def split(projected: Tensor, heads: int) -> Tensor:
            return projected.view(batch, length, heads, self.width).transpose(1, 2)

        queries = rotate(split(self.queries(x), self.heads), table)
        keys = rotate(split(self.keys(x), self.kv_heads), table)
        values = split(self.values(x), self.kv_heads)
        grouped = self.heads != self.kv_heads
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU: one half gates the other."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.out(F.silu(self.gate(x)) * self.up(x))
        return projected


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        stream: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return stream


class Transformer(nn.Module):
    """Calling it with tokens and their successors, both (batch, length), gives the mean loss in nats per token."""

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)
        table = rotary_table(config.sequence_length, config.dim // config.heads, config.rope_theta)
        self.register_buffer("table", table, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            # What each block adds to the residual stream starts small, so that its sum does not grow with depth.
            depth = 2 * config.layers if name.endswith("out.weight") else 1
            nn.init.normal_(parameter, std=0.02 / depth**0.5)

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.table)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def forward(self, tokens: Tensor, successors: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens).float().flatten(0, 1), successors.flatten())
