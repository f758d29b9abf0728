"""A model as a user writes it: causal convolutions."""

from typing import Any

from torch import Tensor, nn

from trainer.models.loss import next_token_loss


class Convolution(nn.Module):
    """A residual block that mixes each token with those before it."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.convolution = nn.Conv1d(dim, dim, width, padding=width - 1)
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.convolution(self.norm(x).transpose(1, 2))[..., : x.size(1)].transpose(1, 2)
        output: Tensor = x + self.linear(nn.functional.gelu(mixed))
        return output


class ConvolutionalModel(nn.Module):
    """A language model of convolutions."""

    def __init__(self, vocabulary: int, sequence_length: int, dim: int = 32, layers: int = 2, width: int = 4) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be positive, and it is {layers}")
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList([Convolution(dim, width) for _ in range(layers)])
        self.output = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return next_token_loss(x, self.output.weight, targets, chunk=2048)


class DocumentModel(ConvolutionalModel):
    """The same, which accepts documents."""

    def forward(self, tokens: Tensor, targets: Tensor, cu_seqlens: Any = None) -> Tensor:
        return super().forward(tokens, targets)
