"""The built-in decoder: RMSNorm, rotary position embedding, SwiGLU or experts, grouped-query attention.

Its submodules have the names that Llama, Mistral, Qwen 2, Qwen 3 and Qwen3-MoE have in transformers, without the prefix
`model.`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from trainer.models.context_parallel import ContextShard
from trainer.models.documents import attention_masks
from trainer.models.experts import MATRICES, ExpertLayer, Experts, add_gradient, load_balancing_loss
from trainer.models.lora import initialize_adapter
from trainer.models.loss import next_token_loss, target_share
from trainyard.config.training.models import DecoderConfig, RopeScaling


def rotary_table(length: int, width: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Return (2, length, width): cosines, and sines with the signs that `rotate` needs, of the angles by position."""
    frequencies = torch.pow(theta, -torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
    if scaling is not None:
        frequencies = scale_frequencies(frequencies, scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device="cpu"), frequencies)
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)]).float()


def scale_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide low frequencies by the factor, so that positions beyond the length of the pretraining are known.

    Those between the two limits are a mixture. Source: Llama 3.1, `apply_scaling` in models/llama3/reference_impl of
    meta-llama/llama-models.
    """
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    periods = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)  # in the original length
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled = ((periods - low) / (high - low)).clamp(0, 1)
    return frequencies * (unscaled + (1 - unscaled) / scaling.factor)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each pair (i, i + width/2) of the last dimension by the angle of its position."""
    cosines, sines = table[:, : x.size(-2)]
    rotated: Tensor = x * cosines + x.roll(x.size(-1) // 2, -1) * sines
    return rotated.to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query self-attention.

    With tensor parallelism a rank's projections hold a part of the heads: their number follows from the outputs.
    """

    context_shard: ContextShard | None = None  # of this rank, with context parallelism

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.width = config.head_size
        queries, keys = config.heads * self.width, config.kv_heads * self.width
        bias = config.architecture == "qwen2"
        self.q_proj = nn.Linear(config.dim, queries, bias=bias)
        self.k_proj = nn.Linear(config.dim, keys, bias=bias)
        self.v_proj = nn.Linear(config.dim, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.dim, bias=False)
        if config.normalizes_heads:
            self.q_norm = nn.RMSNorm(self.width, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(self.width, eps=config.norm_eps)
        self._normalizes = config.normalizes_heads

    def forward(self, x: Tensor, table: Tensor, masks: Sequence[Tensor | None] = (None,)) -> Tensor:
        """Return the attention output. `table` is from `rotary_table`, `masks` from `attention_masks`."""
        batch, length, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, -1, self.width)

        queries, keys, values = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        if self._normalizes:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotate(queries.transpose(1, 2), table), rotate(keys.transpose(1, 2), table)
        values = values.transpose(1, 2)
        if self.context_shard is None:
            mixed = _attend(queries, keys, values, masks[0])
        else:
            mixed = _attend_to_all_ranks(queries, keys, values, masks, self.context_shard)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return projected


def _attend_to_all_ranks(
    queries: Tensor, keys: Tensor, values: Tensor, masks: Sequence[Tensor | None], shard: ContextShard
) -> Tensor:
    """Return the attention of this rank's shard of the sequences. Arguments and result are those of `_attend`."""
    keys, values = shard.gather(torch.stack([keys.to(values.dtype), values]))
    outputs = []
    for rows, mask, (_, stop) in zip(queries.chunk(2, 2), masks, shard.chunks(keys.size(2)), strict=True):
        outputs.append(_attend(rows, keys[:, :, :stop], values[:, :, :stop], mask))
    return torch.cat(outputs, 2)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Return causal attention to the same or to more keys. `mask`: see `attention_masks`.

    queries, result: (batch, heads, length, width); keys, values: with fewer heads.
    """
    grouped = queries.size(1) != keys.size(1)
    if mask is None or mask.dtype == torch.bool:
        return functional.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None, enable_gqa=grouped
        )
    batch, _, length, _ = queries.shape
    key_count = keys.size(2)
    # Under autocast a norm of queries and keys returns fp32, and varlen_attn, unlike SDPA, does not cast its inputs.
    packed = (each.to(values.dtype).transpose(1, 2).flatten(0, 1) for each in (queries, keys, values))
    queries, keys, values = packed
    mixed = varlen_attn(
        queries, keys, values, mask[0], mask[1], length, key_count, window_size=(-1, 0), enable_gqa=grouped
    )
    assert isinstance(mixed, Tensor), "no auxiliary output is requested"
    return mixed.view(batch, length, *mixed.shape[1:]).transpose(1, 2)


class FeedForward(nn.Module):
    """Feed-forward layer with SwiGLU activation."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Block(nn.Module):
    """A transformer block: attention and feed-forward layer, each with a pre-norm and a residual connection."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config) if config.experts is None else ExpertLayer(config)

    def forward(
        self, x: Tensor, table: Tensor, masks: Sequence[Tensor | None] = (None,)
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the residual stream after the block. With experts also their `routing_shares`."""
        x = x + self.self_attn(self.input_layernorm(x), table, masks)
        output = self.mlp(self.post_attention_layernorm(x))
        if isinstance(output, tuple):
            output, shares = output
            return x + output, shares
        stream: Tensor = x + output
        return stream


def logits_or_loss(
    x: Tensor, weight: Tensor, targets: Tensor | None, chunk: int | None, compiled: bool | None
) -> Tensor:
    """Return the logits, or the loss if the targets of the tokens are given (`next_token_loss`)."""
    if targets is None:
        return functional.linear(x, weight)
    return next_token_loss(x, weight, targets, chunk, compiled=compiled)


class OutputLayer(nn.Linear):
    """The output layer of a decoder whose embedding is another matrix."""

    def forward(
        self, x: Tensor, targets: Tensor | None = None, chunk: int | None = None, compiled: bool | None = None
    ) -> Tensor:
        """Return the output of `logits_or_loss`."""
        return logits_or_loss(x, self.weight, targets, chunk, compiled)


class Decoder(nn.Module):
    """The decoder, or the blocks `layers` of it as one pipeline stage.

    The first stage takes tokens (batch, length), a later stage the output of the previous stage. The last stage returns
    the loss in nats per token if it gets the tokens' targets (`next_token_loss`), and logits otherwise.
    """

    table: Tensor
    context_shard: ContextShard | None = None  # of this rank, with context parallelism
    expert_shares: Tensor | None = None  # (layers, experts): shares of the rows of the last micro-batch in training

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
            self.embed_tokens = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleDict({str(number): Block(config) for number in layers})
        if self.last:
            self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
            if not config.tie_embeddings:
                self.lm_head = OutputLayer(config.dim, config.vocabulary, bias=False)
        table = rotary_table(config.sequence_length, config.head_size, config.rope_theta, config.rope_scaling)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, targets: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """Return the output of the stage. `cu_seqlens`: documents that do not attend to each other, or none.

        With context parallelism all ranks get the same whole sequences; the output is of this rank's part.
        """
        length = x.size(1) if self.first else self.config.sequence_length  # x may have a part of it
        shard, table = self.context_shard, self.table
        chunks: tuple[tuple[int, int], ...] = ((0, length),)
        if shard is not None:
            table, chunks = shard.take(table[:, :length], 1), shard.chunks(length)
            x = shard.take(x, 1) if self.first else x
        if self.first:
            x = self.embed_tokens(x)
        masks = attention_masks(cu_seqlens, x, length, chunks, self.config.head_size)
        shares: list[Tensor] = []
        for block in self.layers.values():
            x = block(x, table, masks)
            if self.config.experts is not None:
                x, routed = x
                shares.append(routed)
        if not self.last:
            return x
        x = self.norm(x)
        local_targets = shard.take(targets, 1) if shard is not None and targets is not None else targets
        if not self.config.tie_embeddings:
            output: Tensor = self.lm_head(x, local_targets, *self._loss_options)
        else:
            output = logits_or_loss(x, self.embed_tokens.weight, local_targets, *self._loss_options)
        return self._add_load_balancing_gradient(output, shares, targets)

    def _add_load_balancing_gradient(self, output: Tensor, shares: list[Tensor], targets: Tensor | None) -> Tensor:
        """Return the output. In training with experts it has the gradient of the auxiliary load-balancing loss, too.

        Gradients are divided by the mean of `target_share` over all micro-batches, so that loss is multiplied by
        the micro-batch's own share: its mean over the micro-batches is weighted as that of their losses. With context
        parallelism the mean of the ranks' probabilities has the gradient, so that only the other shares are summed.
        """
        if not shares or targets is None or not torch.is_grad_enabled():
            return output
        rows, probabilities = torch.stack(shares).unbind(1)
        self.expert_shares = rows.detach()
        if self.context_shard is not None:
            rows = self.context_shard.mean(self.expert_shares)
        assert self.config.experts_per_token is not None
        balance = load_balancing_loss(rows, probabilities, self.config.experts_per_token)
        return add_gradient(output, self.config.router_aux_loss_coef * target_share(targets) * balance)

    def initialize(self, name: str, module: nn.Module) -> None:
        """Initialize the weights of one submodule, without its children; `name` is its name in the model."""
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif name.endswith((".lora_A", ".lora_B")):
            assert isinstance(module, nn.Linear)
            initialize_adapter(name, module)
        elif isinstance(module, nn.Linear | nn.Embedding):
            # The outputs that blocks add to the residual stream are scaled, so that their sum does not grow with depth.
            depth = 2 * self.config.layers if name.endswith((".o_proj", ".down_proj")) else 1
            nn.init.normal_(module.weight, std=0.02 / depth**0.5)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Experts):
            for key in MATRICES:
                depth = 2 * self.config.layers if key == "down_proj" else 1
                nn.init.normal_(getattr(module, key), std=0.02 / depth**0.5)


class DecoderStages(nn.Module):
    """Several pipeline stages of a rank: their submodules, by their names in the whole decoder. It is not called."""

    def __init__(self, stages: Sequence[Decoder]) -> None:
        super().__init__()
        self.stages = tuple(stages)  # a tuple: torch would add their names to those of the parameters
        self.layers = nn.ModuleDict({number: block for stage in stages for number, block in stage.layers.items()})
        for stage in stages:
            for name, child in stage.named_children():
                if name != "layers":
                    self.add_module(name, child)


def stages_of(module: nn.Module) -> tuple[nn.Module, ...]:
    """Return the pipeline stages of a rank's module: itself, or those of `DecoderStages`."""
    return module.stages if isinstance(module, DecoderStages) else (module,)


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the layers of one pipeline stage.

    Stages differ by at most one layer; the last stage, which also has the output layer, never has the additional layer.
    """
    base, remainder = divmod(layers, stages)
    start = stage * base + min(stage, remainder)
    return range(start, start + base + (stage < remainder))
