"""The built-in decoder."""

import pytest
import torch
from torch import Tensor

from trainer.models.decoder import Attention, Decoder, rotary_table, rotate, stage_layers
from trainyard.config.training.models import DecoderConfig
from trainyard.config.training.presets import DECODERS

SHAPE = DecoderConfig(dim=32, layers=2, heads=4, kv_heads=2, intermediate_size=64, sequence_length=32)


def decoder(config: DecoderConfig = SHAPE, layers: range | None = None) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(config, loss_chunk_tokens=None, layers=layers)
    for name, module in model.named_modules():
        model.initialize(name, module)
    return model


def test_attention_is_causal() -> None:
    model = decoder()
    tokens = torch.randint(0, 256, (1, 32))
    changed = tokens.clone()
    changed[0, 20:] = 255 - changed[0, 20:]
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_attention_scores_depend_on_relative_position() -> None:
    table = rotary_table(32, 8, 10_000.0)
    query, key = torch.randn(8), torch.randn(8)
    queries, keys = (rotate(vector.expand(32, 8), table) for vector in (query, key))
    torch.testing.assert_close(queries[5] @ keys[2], queries[25] @ keys[22])


def test_grouped_heads_share_keys_and_values() -> None:
    """Four query heads with two key heads equal four key heads with repeated weights."""
    torch.manual_seed(0)
    grouped = Attention(SHAPE)
    full = Attention(SHAPE.model_copy(update={"kv_heads": 4}))
    state = grouped.state_dict()
    for name in ("k_proj.weight", "v_proj.weight"):
        state[name] = state[name].view(2, 8, 32).repeat_interleave(2, 0).reshape(32, 32)
    full.load_state_dict(state)
    x, table = torch.randn(2, 16, 32), rotary_table(32, 8, 10_000.0)
    torch.testing.assert_close(grouped(x, table), full(x, table))


def test_initial_loss_is_that_of_uniform_predictions() -> None:
    tokens = torch.randint(0, 256, (4, 33))
    loss = decoder()(tokens[:, :-1], tokens[:, 1:])
    assert abs(loss.item() - torch.log(torch.tensor(256.0)).item()) < 0.1


def test_loss_of_documents_equals_that_of_each_alone() -> None:
    model = decoder()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens, targets = torch.randint(0, 256, (2, 32)), torch.randint(0, 256, (2, 32))
    packed = model(tokens, targets, torch.tensor([0, 10, 32, 64], dtype=torch.int32)) * 64
    alone = [
        model(tokens[row : row + 1, part], targets[row : row + 1, part]) * len(range(*part.indices(32)))
        for row, part in ((0, slice(0, 10)), (0, slice(10, 32)), (1, slice(0, 32)))
    ]
    torch.testing.assert_close(packed, torch.stack(alone).sum())
    assert not torch.isclose(packed, model(tokens, targets) * 64)  # without boundaries


def test_pipeline_stages_compute_the_whole_model() -> None:
    whole = decoder()
    first, last = decoder(layers=range(0, 1)), decoder(layers=range(1, 2))
    for stage in (first, last):
        stage.load_state_dict({name: whole.state_dict()[name] for name in stage.state_dict()})
    tokens: Tensor = torch.randint(0, 256, (2, 33))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    torch.testing.assert_close(last(first(inputs), targets), whole(inputs, targets))


@pytest.mark.parametrize(("layers", "stages"), [(4, 1), (7, 3), (80, 16)])
def test_each_layer_is_in_one_stage(layers: int, stages: int) -> None:
    parts = [stage_layers(layers, stages, stage) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_tied_model_has_no_output_layer() -> None:
    config = SHAPE.model_copy(update={"tie_embeddings": True})
    names = [name for name, _ in decoder(config).named_parameters()]
    assert not [name for name in names if name.startswith("lm_head")]


@pytest.mark.parametrize("preset", DECODERS)
def test_preset_has_the_size_of_its_name(preset: str) -> None:
    config = DecoderConfig.model_validate({"preset": preset})
    with torch.device("meta"):
        model = Decoder(config, loss_chunk_tokens=None)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters
    total, _, active = preset.partition("-a")
    sizes = [(total, config.parameters), (active or total, config.active_parameters)]
    for name, parameters in sizes:
        assert parameters == pytest.approx(float(name[:-1]) * {"m": 1e6, "b": 1e9}[name[-1]], rel=0.25)


def test_key_overrides_its_preset() -> None:
    config = DecoderConfig.model_validate({"preset": "8b", "sequence_length": 4096})
    assert (config.dim, config.sequence_length) == (4096, 4096)
