"""Mixture of experts: the layer's output and gradients, and the balance of its router."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from trainer.models.decoder import Decoder
from trainer.models.experts import ExpertLayer, load_balancing_loss, routing_shares
from trainyard.config.training.models import IGNORED, DecoderConfig

SHAPE = DecoderConfig(
    architecture="qwen3_moe",
    dim=32,
    layers=2,
    heads=4,
    kv_heads=2,
    sequence_length=32,
    experts=4,
    experts_per_token=2,
    expert_intermediate_size=16,
)


def decoder(**changes: float) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(SHAPE.model_copy(update=changes), loss_chunk_tokens=None)
    for name, module in model.named_modules():
        model.initialize(name, module)
    return model


def router_weights(model: Decoder) -> list[Tensor]:
    return [layer.gate.weight for layer in model.modules() if isinstance(layer, ExpertLayer)]


def expert_layer() -> ExpertLayer:
    torch.manual_seed(0)
    layer = ExpertLayer(SHAPE)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def output_of_all_experts(layer: ExpertLayer, x: Tensor) -> Tensor:
    """Compute all experts for each token, and mix those with the highest probabilities."""
    experts = layer.experts
    outputs = torch.stack(
        [
            functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)
            for gate, up, down in zip(experts.gate_proj, experts.up_proj, experts.down_proj, strict=True)
        ],
        dim=-1,
    )
    probabilities = layer.gate(x).softmax(-1)
    chosen = probabilities >= probabilities.topk(2).values[..., -1:]
    weights = probabilities * chosen
    mixed: Tensor = (outputs * (weights / weights.sum(-1, keepdim=True)).unsqueeze(-2)).sum(-1)
    return mixed


def test_output_is_the_mixture_of_the_chosen_experts() -> None:
    layer, x = expert_layer(), torch.randn(2, 16, 32)
    torch.testing.assert_close(layer(x)[0], output_of_all_experts(layer, x))


def test_gradients_are_those_of_the_mixture() -> None:
    layer, x = expert_layer(), torch.randn(2, 16, 32, requires_grad=True)
    inputs = [x, *layer.parameters()]
    actual, expected = (
        torch.autograd.grad(output.pow(2).sum(), inputs) for output in (layer(x)[0], output_of_all_experts(layer, x))
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_experts_without_tokens_have_a_gradient_of_zero() -> None:
    layer, x = expert_layer(), torch.ones(2, 16, 32)
    layer(x)[0].sum().backward()
    gradient = layer.experts.up_proj.grad
    assert gradient is not None
    assert sorted(gradient.flatten(1).any(1).tolist()) == [False, False, True, True]


def test_gradient_that_the_product_has_not_written_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some GPUs that of experts without rows has any value."""
    experts = expert_layer().experts
    product = functional.grouped_mm

    def without_result(rows: Tensor, weights: Tensor, offs: Tensor) -> Tensor:
        unwritten = torch.tensor([1])
        weights.register_hook(lambda gradient: gradient.index_fill(0, unwritten, torch.nan))  # type: ignore[no-untyped-call]
        return product(rows, weights, offs=offs)

    monkeypatch.setattr(functional, "grouped_mm", without_result)
    experts(torch.randn(6, 32), torch.tensor([2, 0, 3, 1], dtype=torch.int32)).pow(2).sum().backward()
    gradients = [parameter.grad for parameter in experts.parameters()]
    assert [gradient is not None and gradient.isfinite().all().item() for gradient in gradients] == [True] * 3


def test_rank_without_tokens_has_gradients_of_zero() -> None:
    """All ranks of a group reduce gradients, also a rank whose experts no token has."""
    experts, rows = expert_layer().experts, torch.zeros(0, 32, requires_grad=True)
    experts(rows, torch.zeros(4, dtype=torch.int32)).backward(torch.zeros(0, 32))
    gradients = [parameter.grad for parameter in experts.parameters()]
    assert [gradient is not None and not gradient.any() for gradient in gradients] == [True] * 3


def test_layer_is_compiled_as_one_graph() -> None:
    layer, x = expert_layer(), torch.randn(2, 16, 32)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_load_balancing_loss_is_that_of_the_paper() -> None:
    """Two experts with three and one of four rows, and mean probabilities of 0.6 and 0.4: 2 (0.75 0.6 + 0.25 0.4)."""
    shares = routing_shares(torch.tensor([3, 1]), torch.tensor([[0.8, 0.2], [0.4, 0.6]]))
    assert load_balancing_loss(shares[0].unsqueeze(0), shares[1].unsqueeze(0), 1).item() == pytest.approx(1.1)


def test_load_balancing_loss_of_a_layer_is_that_of_transformers() -> None:
    logits = torch.randn(64, 8)
    chosen = logits.topk(2).indices
    shares = routing_shares(chosen.flatten().bincount(minlength=8), logits.softmax(-1))
    expected = load_balancing_loss_func((logits,), num_experts=8, top_k=2)
    assert load_balancing_loss(shares[0].unsqueeze(0), shares[1].unsqueeze(0), 2).item() == pytest.approx(
        float(expected)
    )


def test_load_balancing_loss_of_equal_shares_is_independent_of_layers() -> None:
    shares = routing_shares(torch.full((4,), 8), torch.full((16, 4), 0.25))
    assert load_balancing_loss(shares[:1].expand(3, -1), shares[1:].expand(3, -1), 2).item() == pytest.approx(2)


def loss_and_router_gradient(coefficient: float, targets: Tensor) -> tuple[float, Tensor]:
    model = decoder(router_aux_loss_coef=coefficient)
    loss = model(torch.arange(64).view(2, 32), targets)
    loss.backward()
    gradient = router_weights(model)[0].grad
    assert isinstance(gradient, Tensor)
    return loss.item(), gradient


def test_balance_loss_is_not_reported() -> None:
    targets = torch.arange(64).view(2, 32)
    losses = [loss_and_router_gradient(coefficient, targets)[0] for coefficient in (0.0, 0.5)]
    assert losses[0] == losses[1]


def test_balance_gradient_has_the_weight_of_the_micro_batch() -> None:
    """The gradients of a step are divided by the share of the targets with a loss: here a quarter has none."""
    targets = torch.arange(64).view(2, 32)
    ignored = targets.clone()
    ignored[1, 16:] = IGNORED

    def gradient(targets: Tensor) -> Tensor:
        without, with_balance = (loss_and_router_gradient(factor, targets)[1] for factor in (0.0, 0.5))
        return with_balance - without

    torch.testing.assert_close(gradient(ignored), 0.75 * gradient(targets), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("coefficient", "is_even"), [(0.0, False), (0.1, True)])
def test_balance_loss_evens_the_load(coefficient: float, is_even: bool) -> None:
    """At first all tokens have the same two of four experts."""
    model = decoder(router_aux_loss_coef=coefficient)
    for weight in router_weights(model):
        weight.data[:2] += 0.2
    model.embed_tokens.weight.data += 0.05
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(0, 256, (4, 33))
    loads = []
    for _ in range(60):
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert model.expert_shares is not None
        loads.append((4 * model.expert_shares.max()).item())
    assert loads[0] > 1.8
    assert (loads[-1] < 1.2) == is_even, loads
