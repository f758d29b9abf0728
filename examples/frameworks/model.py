"""A small transformer that predicts the next byte."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256


class Block(nn.Module):
    """A transformer block with causal attention and an MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query_key_value, self.projection = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, dim = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(samples, length, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(samples, length, dim))
        return x + self.mlp(self.mlp_norm(x))


class ByteModel(nn.Module):
    """A decoder. Its forward takes (samples, length + 1) bytes and returns the mean next-byte loss."""

    def __init__(self, length: int, dim: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(VOCABULARY, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCABULARY, bias=False)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, sample: Tensor) -> Tensor:
        inputs, targets = sample[:, :-1], sample[:, 1:]
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.token_embedding(inputs) + self.position_embedding(positions)
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
