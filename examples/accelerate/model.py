"""A small transformer that learns to say the next byte. The same file lies in each folder that trains it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query_key_value, self.projection = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, dim = x.shape
        split = self.query_key_value(self.before_attention(x)).view(samples, length, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(samples, length, dim))
        return x + self.mlp(self.before_mlp(x))


class ByteModel(nn.Module):
    """Its forward takes (samples, length + 1) bytes and gives the mean loss of saying each from those before it."""

    def __init__(self, length: int, dim: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.normed, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCABULARY, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, sample: Tensor) -> Tensor:
        given, wanted = sample[:, :-1], sample[:, 1:]
        x = self.tokens(given) + self.places(torch.arange(given.shape[1], device=given.device))
        logits = self.head(self.normed(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())
