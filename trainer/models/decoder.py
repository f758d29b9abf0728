"""The built-in decoder, similar to Llama: RMSNorm, rotary position embedding, SwiGLU, grouped-query attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.loss import next_token_loss
from trainyard.config.training.models import DecoderConfig


def rotary_table(length: int, width: int, theta: float) -> Tensor:
    """Return (2, length, width): cosines, and sines with the signs that `rotate` needs, of the angles by position."""
    frequencies = torch.pow(theta, -torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device="cpu"), frequencies)
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each pair (i, i + width/2) of the last dimension by the angle of its position."""
    cosines, sines = table[:, : x.size(-2)]
    rotated: Tensor = x * cosines + x.roll(x.size(-1) // 2, -1) * sines
    return rotated.to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query self-attention.

    With tensor parallelism a rank's projections hold a part of the heads: their number follows from the outputs.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.width = config.dim // config.heads
        self.queries = nn.Linear(config.dim, config.dim, bias=False)
        self.keys = nn.Linear(config.dim, config.kv_heads * self.width, bias=False)
        self.values = nn.Linear(config.dim, config.kv_heads * self.width, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Return the attention output; `table` is from `rotary_table`."""
        batch, length, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, -1, self.width).transpose(1, 2)

        queries, keys = rotate(heads(self.queries(x)), table), rotate(heads(self.keys(x)), table)
        values = heads(self.values(x))
        grouped = queries.size(1) != keys.size(1)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return projected


class FeedForward(nn.Module):
    """Feed-forward layer with SwiGLU activation."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.out = nn.Linear(config.intermediate_size, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        projected: Tensor = self.out(functional.silu(self.gate(x)) * self.up(x))
        return projected


class Block(nn.Module):
    """A transformer block: attention and feed-forward layer, each with a pre-norm and a residual connection."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Return the residual stream after the block."""
        x = x + self.attention(self.attention_norm(x), table)
        stream: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return stream


def output_of(x: Tensor, weight: Tensor, successors: Tensor | None, chunk: int | None, compiled: bool | None) -> Tensor:
    """Return the logits, or the mean loss if the successors of the tokens are given (`next_token_loss`)."""
    if successors is None:
        return functional.linear(x, weight)
    return next_token_loss(x, weight, successors, chunk, compiled=compiled)


class OutputLayer(nn.Linear):
    """The output layer of a decoder whose embedding is another matrix."""

    def forward(
        self, x: Tensor, successors: Tensor | None = None, chunk: int | None = None, compiled: bool | None = None
    ) -> Tensor:
        """Return the output of `output_of`."""
        return output_of(x, self.weight, successors, chunk, compiled)


class Decoder(nn.Module):
    """The decoder, or the blocks `layers` of it as one pipeline stage.

    The first stage takes tokens (batch, length), a later stage the output of the previous stage. The last stage returns
    the mean loss in nats per token if it gets the tokens' successors, and logits otherwise.
    """

    table: Tensor

    def __init__(
        self,
        config: DecoderConfig,
        loss_chunk_tokens: int | None,
        layers: range | None = None,
        *,
        compiles_loss: bool | None = None,
    ) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.config, self._loss_options = config, (loss_chunk_tokens, compiles_loss)
        self.first, self.last = layers.start == 0, layers.stop == config.layers
        if self.first:
            self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.blocks = nn.ModuleDict({str(number): Block(config) for number in layers})
        if self.last:
            self.norm = nn.RMSNorm(config.dim, eps=1e-5)
            if not config.tie_embeddings:
                self.head = OutputLayer(config.dim, config.vocabulary, bias=False)
        table = rotary_table(config.sequence_length, config.dim // config.heads, config.rope_theta)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, successors: Tensor | None = None) -> Tensor:
        """Return the output of the stage."""
        if self.first:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, self.table)
        if not self.last:
            return x
        x = self.norm(x)
        if not self.config.tie_embeddings:
            output: Tensor = self.head(x, successors, *self._loss_options)
            return output
        return output_of(x, self.embedding.weight, successors, *self._loss_options)

    def initialize(self, name: str, module: nn.Module) -> None:
        """Initialize the weights of one submodule, without its children; `name` is its name in the model."""
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, nn.Linear | nn.Embedding):
            # The outputs that blocks add to the residual stream are scaled, so that their sum does not grow with depth.
            depth = 2 * self.config.layers if name.endswith(".out") else 1
            nn.init.normal_(module.weight, std=0.02 / depth**0.5)


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the layers of one pipeline stage.

    Stages differ by at most one layer; the last stage, which also has the output layer, never has the additional layer.
    """
    base, remainder = divmod(layers, stages)
    start = stage * base + min(stage, remainder)
    return range(start, start + base + (stage < remainder))
