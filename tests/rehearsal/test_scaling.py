"""What a rehearsal changes of a stack, it says; what it need not change, it leaves."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from rehearsal.scaling import NOT_HERE, scale, why_left_out
from trainyard.base import CONFIG_KEY
from trainyard.config.loader import read_settings
from trainyard.config.settings import StackSettings
from trainyard.config.training.models import DecoderConfig
from trainyard.models.manifest import SystemRole
from trainyard.models.report import BackendName

ROOT = Path(__file__).parents[2]


def settings_of(stack: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / f"stacks/Pulumi.{stack}.yaml").read_text())["config"][CONFIG_KEY]
    return found


def scaled(stack: str, nodes: int | None = None) -> tuple[StackSettings, list[str]]:
    settings, changes = scale(settings_of(stack), nodes)
    return read_settings(settings, ROOT, "x"), [change.what for change in changes]


def test_a_gpu_stack_keeps_its_topology() -> None:
    before, (after, _) = read_settings(settings_of("a100-cluster"), ROOT, "x"), scaled("a100-cluster", 3)
    assert (after.instance_type, after.efa, after.placement_group, after.fsx, after.network) == (
        before.instance_type,
        before.efa,
        before.placement_group,
        before.fsx,
        before.network,
    )


def test_a_gpu_stack_computes_less_and_says_so() -> None:
    after, changes = scaled("a100-cluster", 3)
    assert (after.nodes, after.processes_per_node, after.node.accelerators) == (3, 2, False)
    assert after.job.train is not None
    assert isinstance(after.job.train.model, DecoderConfig)
    assert after.job.train.model.dim == 64
    model = "the stack's model, optimizer, batch, steps and intervals"
    assert {"4 nodes", "8 A100 a node, NCCL", "8 processes a node", model} <= set(changes)


@pytest.mark.parametrize(
    ("nodes", "given", "expected"),
    [
        (4, {"data": "fsdp"}, {"data": "fsdp"}),
        (4, {"data": "hsdp"}, {"data": "hsdp", "shard": 2}),
        (3, {"data": "hsdp", "shard": 4}, {"data": "hsdp", "shard": 2}),
        (4, {"data": "fsdp", "tensor": 8, "reshard_after_forward": False}, {"data": "fsdp", "tensor": 2}),
        (4, {"pipeline": 4}, {"pipeline": 2}),
        (3, {"data": "hsdp", "pipeline": 2, "schedule": "gpipe"}, {"data": "hsdp", "pipeline": 2, "shard": 1}),
    ],
)
def test_a_gpu_stack_is_spread_in_the_same_ways_over_fewer_processes(
    nodes: int, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    raw = settings_of("a100-cluster")
    raw["job"]["train"] |= {"parallel": given, "batch_size": 768}
    settings, changes = scale(raw, nodes)
    train = read_settings(settings, ROOT, "x").job.train
    assert train is not None
    kept = {key: value for key, value in given.items() if key in ("schedule", "reshard_after_forward")}
    assert train.parallel.model_dump(exclude_defaults=True) == expected | kept
    told = [change for change in changes if change.what.startswith(given.get("data", "ddp"))]
    assert bool(told) == bool(given.keys() & {"tensor"} or given.get("pipeline", 0) > 2)


def test_a_gpu_stack_with_a_dataset_of_its_own_takes_the_corpus_and_says_so() -> None:
    raw = settings_of("a100-cluster")
    raw["job"] |= {"builtin_corpus": False, "dataset": "photos"}
    raw["job"]["train"]["model"] = {"kind": "images"}
    settings, changes = scale(raw, None)
    assert read_settings(settings, ROOT, "x").job.builtin_corpus
    assert "the dataset photos" in [change.what for change in changes]


def test_a_gpu_stack_that_is_verified_says_what_of_that_is_not_here() -> None:
    _, changes = scaled("a100-cluster")
    assert "GPUs, EFA and the catalog's floors in the nodes' verification" in changes


def test_a_cpu_stack_keeps_its_job() -> None:
    before, (after, changes) = read_settings(settings_of("local"), ROOT, "x"), scaled("local")
    assert after.job == before.job
    assert not any("model" in change or "nodes" in change for change in changes)


def test_a_batch_follows_the_nodes() -> None:
    after, changes = scaled("local", 3)
    assert after.job.train is not None
    assert after.job.train.batch_size == 48
    assert "a batch of 32 samples" in changes


@pytest.mark.parametrize("stack", ["local", "a100-cluster", "own-job"])
def test_scaling_does_not_touch_what_it_was_given(stack: str) -> None:
    raw = settings_of(stack)
    scale(raw, 5)
    assert raw == settings_of(stack)


def test_a_batch_that_the_gpus_of_other_nodes_do_not_share_is_told() -> None:
    """The preset takes its place here; on AWS the stack file must change."""
    _, changes = scaled("a100-cluster", 3)
    assert "a batch of 512 samples" in changes


@pytest.mark.parametrize("backend", ["process", "nspawn"])
def test_a_job_of_a_container_runs_without_one_and_that_is_told(backend: BackendName) -> None:
    raw = settings_of("own-job")
    raw["job"]["container"] = "nvcr.io/nvidia/pytorch:26.10-py3"
    read_settings(raw, ROOT, "x")
    settings, changes = scale(raw, None, backend)
    assert read_settings(settings, ROOT, "x").job.container is None
    [told] = [change for change in changes if "nvcr.io" in change.what]
    assert told.why == "nodes here reach no registry, nor packages of Docker"


def test_a_booted_node_leaves_out_what_its_hardware_is_not_here_for_and_what_the_stack_leaves_out() -> None:
    raw = settings_of("a100-cluster")
    raw["node"] = {**raw.get("node", {}), "leave_out": ["container"]}
    settings, _ = scale(raw, None, "nspawn")
    assert set(read_settings(settings, ROOT, "x").node.leave_out) == {*NOT_HERE, "container"}
    assert NOT_HERE.keys() <= set(get_args(SystemRole))
    assert why_left_out("efa", "nspawn") == "no EFA device is here"
    assert why_left_out("container", "nspawn") is None  # it is not left out because of this machine
