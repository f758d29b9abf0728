"""The transformer."""

import torch

from tests.trainer.conftest import tiny
from trainer.loop import make_optimizer
from trainer.model import Attention, Transformer, rotary_table, rotate


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = Transformer(tiny().model)
    tokens = torch.randint(0, 256, (1, 32))
    changed = tokens.clone()
    changed[0, 20:] = 255 - changed[0, 20:]
    before, after = model.logits(tokens), model.logits(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_attention_scores_depend_on_distance_alone() -> None:
    table = rotary_table(32, 8, 10_000.0)
    query, key = torch.randn(8), torch.randn(8)
    queries, keys = (rotate(vector.expand(32, 8), table) for vector in (query, key))
    torch.testing.assert_close(queries[5] @ keys[2], queries[25] @ keys[22])


def test_grouped_heads_share_keys_and_values() -> None:
    """Four query heads over two key heads are what four key heads with repeated weights would be."""
    torch.manual_seed(0)
    config = tiny().model
    grouped = Attention(config)
    full = Attention(config.model_copy(update={"kv_heads": 4}))
    state = grouped.state_dict()
    for name in ("keys.weight", "values.weight"):
        state[name] = state[name].view(2, 8, 32).repeat_interleave(2, 0).reshape(32, 32)
    full.load_state_dict(state)
    x, table = torch.randn(2, 16, 32), rotary_table(32, 8, 10_000.0)
    torch.testing.assert_close(grouped(x, table), full(x, table))


def test_an_untrained_model_knows_nothing() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (4, 33))
    loss = Transformer(tiny().model)(tokens[:, :-1], tokens[:, 1:])
    assert abs(loss.item() - torch.log(torch.tensor(256.0)).item()) < 0.1


def test_weight_decay_is_for_matrices_only() -> None:
    model = Transformer(tiny().model)
    decayed, spared = make_optimizer(model, tiny().optimizer).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {parameter.dim() for parameter in decayed["params"]} == {2}
    assert {parameter.dim() for parameter in spared["params"]} == {1}
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))
