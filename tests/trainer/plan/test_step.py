"""Memory and collectives of planned ranks. Each is planned in a new process, which takes some seconds."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.trainer.conftest import TINY
from trainer.plan.collectives import Operation
from trainer.plan.step import RankPlan, plan_rank
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig

MODEL = {"dim": 64, "layers": 4, "heads": 4, "kv_heads": 2, "intermediate_size": 128, "vocabulary": 512}
UNITS = 4 + 2  # of fully_shard: blocks, embedding, and norm with head
BYTES = 4 * TrainerConfig.model_validate({"model": MODEL}).model.parameters  # type: ignore[union-attr]


def config(**changes: Any) -> TrainerConfig:
    return TrainerConfig.model_validate({**TINY, "model": MODEL, "batch_size": 32, "micro_batch_size": 1, **changes})


def plan(ranks: int, rank: int = 0, *, compiled: bool = False, **changes: Any) -> RankPlan:
    configured = config(**changes)
    assert configured.problems(ranks, 8) == []
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(plan_rank, configured, ranks, 8, rank, compiled=compiled).result(100)


def counts(planned: RankPlan) -> dict[tuple[str, str], int]:
    return {(each.name, each.group): total.count for each, total in planned.collectives.items()}


@pytest.fixture(scope="module")
def sharded() -> RankPlan:
    """A rank of eight with fsdp, with four micro-batches per step."""
    return plan(8, parallel={"data": "fsdp"})


def test_state_is_sharded(sharded: RankPlan) -> None:
    assert sharded.memory["parameters"] == pytest.approx(BYTES / 8, rel=0.01)
    assert sharded.memory["optimizer"] == pytest.approx(2 * BYTES / 8, rel=0.01)


def test_whole_gradients_exist_of_few_blocks_only(sharded: RankPlan) -> None:
    """Each micro-batch scatters them."""
    assert sharded.memory["gradients"] < BYTES / 2


@pytest.mark.slow
def test_whole_gradients_are_accumulated_if_they_are_reduced_per_step() -> None:
    planned = plan(8, parallel={"data": "fsdp", "reduce_per_step": True})
    assert planned.memory["gradients"] >= BYTES
    assert counts(planned)["reduce_scatter", "shard"] == UNITS


@pytest.mark.slow
def test_context_parallel_rank_has_a_part_of_each_sequence(sharded: RankPlan) -> None:
    """Keys and values are gathered once for each block in the forward pass, and scattered in the backward pass."""
    planned = plan(8, parallel={"data": "fsdp", "context": 2})
    gathers = 2 * 4 * MODEL["layers"]  # twice the micro-batches, since two ranks share each
    assert counts(planned)["all_gather", "context"] == counts(planned)["reduce_scatter", "context"] == gathers
    assert planned.memory["activations"] < sharded.memory["activations"]


def test_collectives_of_all_micro_batches_are_counted(sharded: RankPlan) -> None:
    """A block is gathered twice, for forward and backward pass; norm with head, and the embedding, only once."""
    assert counts(sharded)["reduce_scatter", "shard"] == 4 * UNITS
    assert counts(sharded)["all_gather", "shard"] == 4 * (2 * UNITS - 2)
    scattered = sharded.collectives[Operation("reduce_scatter", "shard", 8)]
    assert scattered.bytes == pytest.approx(4 * BYTES, rel=0.01)


def test_replicas_are_reduced_once_per_step() -> None:
    planned = plan(16, parallel={"data": "hsdp"})
    assert counts(planned)["all_reduce", "replicate"] == UNITS


def test_ddp_reduces_all_gradients_once_per_step() -> None:
    planned = plan(4, parallel={"data": "ddp"})
    (total,) = (total for each, total in planned.collectives.items() if each.group == "replicate")
    assert total.bytes == BYTES + 8  # and the loss with its share
    assert planned.memory["gradients"] == pytest.approx(BYTES, rel=0.01)


@pytest.mark.slow
def test_tensor_parallel_ranks_have_a_part_of_each_block() -> None:
    planned = plan(4, parallel={"tensor": 4}, model={**MODEL, "kv_heads": 4})
    assert planned.memory["parameters"] < 0.3 * BYTES
    assert {("all_gather", "tensor"), ("reduce_scatter", "tensor")} <= counts(planned).keys()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_pipeline_stages_have_their_blocks_only(rank: int) -> None:
    planned = plan(2, rank, parallel={"pipeline": 2})
    assert 0.4 * BYTES < planned.memory["parameters"] < 0.6 * BYTES
    assert counts(planned)["send", "pipeline"] == 32


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_interleaved_rank_has_all_of_its_stages(rank: int) -> None:
    """A rank of two with stages 0 and 2, or 1 and 3: three of the four stages send in each direction."""
    planned = plan(2, rank, parallel={"pipeline": 2, "schedule": "interleaved_1f1b"})
    single = plan(2, rank, parallel={"pipeline": 2})
    assert planned.memory["parameters"] == pytest.approx(single.memory["parameters"])
    assert planned.memory["buffers"] == 2 * single.memory["buffers"] > 0
    assert counts(planned)["send", "pipeline"] == 3 * 32


@pytest.mark.slow
def test_expert_parallel_ranks_exchange_tokens() -> None:
    """Per layer and micro-batch: numbers and rows to the experts, and their results; for gradients the rows only."""
    experts = {"architecture": "qwen3_moe", "experts": 16, "experts_per_token": 2, "expert_intermediate_size": 64}
    planned = plan(8, parallel={"data": "fsdp", "expert": 4}, model={**MODEL, **experts})
    assert counts(planned)["all_to_all", "expert"] == 4 * 4 * (3 + 2)
    rows = 2 * 128 * 64 * 4  # bytes: copies of the tokens of a sample, their width, and fp32
    exchanged = planned.collectives[Operation("all_to_all", "expert", 4)]
    assert exchanged.bytes == 4 * 4 * (4 * rows + 16 * 4)
    assert counts(planned)["reduce_scatter", "expert_shard"] == 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize("expert", [1, 4])
def test_each_rank_has_its_part_of_the_experts(expert: int) -> None:
    experts = {"architecture": "qwen3_moe", "experts": 16, "experts_per_token": 2, "expert_intermediate_size": 64}
    model = TrainerConfig.model_validate({"model": {**MODEL, **experts}}).model
    assert isinstance(model, DecoderConfig)
    planned = plan(8, parallel={"data": "fsdp", "expert": expert}, model={**MODEL, **experts})
    assert planned.memory["parameters"] == pytest.approx(4 * model.parameters / 8, rel=0.01)
    assert planned.memory["optimizer"] == pytest.approx(8 * model.parameters / 8, rel=0.01)


@pytest.mark.slow
def test_muon_has_one_state_and_exchanges_the_matrices(sharded: RankPlan) -> None:
    """Four layers have 28 matrices: with eight ranks four batches of two exchanges."""
    planned = plan(8, parallel={"data": "fsdp"}, optimizer={"kind": "muon"})
    assert planned.memory["optimizer"] < 0.8 * sharded.memory["optimizer"]  # the embeddings have that of AdamW
    assert counts(planned)["all_to_all", "shard"] == 4 * 2


@pytest.mark.slow
def test_traced_blocks_save_less_for_the_backward_pass() -> None:
    model = {**MODEL, "sequence_length": 512}
    eager, traced = (
        plan(1, compiled=compiled, model=model, micro_batch_size=4).memory["activations"] for compiled in (False, True)
    )
    assert traced < 0.9 * eager


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_activation_checkpointing_reduces_activations(compiled: bool) -> None:
    activations = [
        plan(
            1,
            compiled=compiled,
            model={**MODEL, "layers": 8, "sequence_length": 512},
            micro_batch_size=4,
            memory={"activation_checkpointing": mode},
        ).memory["activations"]
        for mode in ("none", "selective", "full")
    ]
    assert activations == sorted(activations, reverse=True)
    assert activations[2] < 0.5 * activations[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"kind": "hugging_face", "preset": "gpt2"}, {"kind": "images", "image_size": 64}])
def test_other_models_are_planned(model: dict[str, Any]) -> None:
    planned = plan(2, model=model)
    assert planned.memory["parameters"] > 0
    assert planned.memory["optimizer"] == pytest.approx(2 * planned.memory["parameters"], rel=0.01)
