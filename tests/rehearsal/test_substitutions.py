"""Substitution changes only the necessary settings of a stack and lists each change."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from rehearsal.substitutions import UNAVAILABLE_ROLES, skip_reason, substitute_settings
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.config.shared_settings import SystemRole
from trainyard.config.training.models import DecoderConfig
from trainyard.models.report import BackendName

ROOT = Path(__file__).parents[2]


def read_stack_settings(stack: str) -> dict[str, Any]:
    """Return the raw settings of a stack file."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / f"stacks/Pulumi.{stack}.yaml").read_text())["config"][CONFIG_KEY]
    return settings


def substituted_settings(stack: str, nodes: int | None = None) -> tuple[StackSettings, list[str]]:
    """Return the substituted settings of a stack, and the originals of the changes."""
    settings, changes = substitute_settings(read_stack_settings(stack), nodes)
    return load_settings(settings, ROOT, "x"), [change.original for change in changes]


def test_gpu_stack_keeps_its_topology() -> None:
    before, (after, _) = (
        load_settings(read_stack_settings("a100-cluster"), ROOT, "x"),
        substituted_settings("a100-cluster", 3),
    )
    assert (after.instance_type, after.efa, after.in_placement_group(after.groups[0]), after.fsx, after.network) == (
        before.instance_type,
        before.efa,
        before.in_placement_group(before.groups[0]),
        before.fsx,
        before.network,
    )


def test_gpu_stack_gets_a_small_model_and_reports_it() -> None:
    after, changes = substituted_settings("a100-cluster", 3)
    assert (after.nodes, after.processes_per_node, after.node.use_gpus) == (3, 2, False)
    assert after.job.train is not None
    assert isinstance(after.job.train.model, DecoderConfig)
    assert after.job.train.model.dim == 64
    model = "model, optimizer, batch size, steps and intervals of the stack"
    assert {"4 nodes", "8 A100 per node, NCCL", "8 processes per node", model} <= set(changes)


@pytest.mark.parametrize(
    ("nodes", "parallel", "expected"),
    [
        (4, {"data": "fsdp"}, {"data": "fsdp"}),
        (4, {"data": "hsdp"}, {"data": "hsdp", "shard": 2}),
        (3, {"data": "hsdp", "shard": 4}, {"data": "hsdp", "shard": 2}),
        (4, {"data": "fsdp", "tensor": 8, "reshard_after_forward": False}, {"data": "fsdp", "tensor": 2}),
        (4, {"pipeline": 4}, {"pipeline": 2}),
        (3, {"data": "hsdp", "pipeline": 2, "schedule": "gpipe"}, {"data": "hsdp", "pipeline": 2, "shard": 1}),
    ],
)
def test_gpu_stack_keeps_its_parallelism_with_smaller_degrees(
    nodes: int, parallel: dict[str, Any], expected: dict[str, Any]
) -> None:
    raw = read_stack_settings("a100-cluster")
    raw["job"]["train"] |= {"parallel": parallel, "batch_size": 768}
    settings, changes = substitute_settings(raw, nodes)
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    unchanged = {key: value for key, value in parallel.items() if key in ("schedule", "reshard_after_forward")}
    assert train.parallel.model_dump(exclude_defaults=True) == expected | unchanged
    changes_of_parallelism = [change for change in changes if change.original.startswith(parallel.get("data", "ddp"))]
    assert bool(changes_of_parallelism) == bool(parallel.keys() & {"tensor"} or parallel.get("pipeline", 0) > 2)


def test_gpu_stack_with_another_dataset_uses_the_builtin_corpus() -> None:
    raw = read_stack_settings("a100-cluster")
    raw["job"] |= {"builtin_corpus": False, "dataset": "photos"}
    raw["job"]["train"]["model"] = {"kind": "images"}
    settings, changes = substitute_settings(raw, None)
    assert load_settings(settings, ROOT, "x").job.builtin_corpus
    assert "the dataset photos" in [change.original for change in changes]


def test_health_check_of_a_gpu_stack_reports_missing_hardware() -> None:
    _, changes = substituted_settings("a100-cluster")
    assert "GPUs, EFA and the catalog's minimum measurements in the health check" in changes


def test_cpu_stack_keeps_its_job() -> None:
    before, (after, changes) = load_settings(read_stack_settings("local"), ROOT, "x"), substituted_settings("local")
    assert after.job == before.job
    assert not any("model" in change or "nodes" in change for change in changes)


def test_batch_size_is_adjusted_to_the_number_of_nodes() -> None:
    after, changes = substituted_settings("local", 3)
    assert after.job.train is not None
    assert after.job.train.batch_size == 48
    assert "batch size 32" in changes


@pytest.mark.parametrize("stack", ["local", "a100-cluster", "custom-job"])
def test_scaling_does_not_modify_its_input(stack: str) -> None:
    raw = read_stack_settings(stack)
    substitute_settings(raw, 5)
    assert raw == read_stack_settings(stack)


def test_batch_size_of_a_gpu_stack_is_adjusted_too() -> None:
    """The small model replaces it in the rehearsal; on AWS the stack file must change."""
    _, changes = substituted_settings("a100-cluster", 3)
    assert "batch size 512" in changes


@pytest.mark.parametrize("backend", ["process", "nspawn"])
def test_container_job_runs_without_its_container(backend: BackendName) -> None:
    raw = read_stack_settings("custom-job")
    raw["job"]["container"] = "nvcr.io/nvidia/pytorch:26.10-py3"
    load_settings(raw, ROOT, "x")
    settings, changes = substitute_settings(raw, None, backend)
    assert load_settings(settings, ROOT, "x").job.container is None
    [container_change] = [change for change in changes if "nvcr.io" in change.original]
    assert container_change.reason.startswith("nodes cannot reach a container registry")


@pytest.mark.parametrize("backend", ["process", "nspawn"])
def test_job_that_reads_from_fsx_reads_the_same_dataset_from_s3(backend: BackendName) -> None:
    raw = read_stack_settings("a100-cluster")
    assert load_settings(raw, ROOT, "x").job.data == "fsx"
    settings, changes = substitute_settings(raw, None, backend)
    after = load_settings(settings, ROOT, "x").job
    assert (after.data, after.dataset) == ("s3", "python-stdlib")
    assert "a dataset that nodes read from FSx for Lustre" in [change.original for change in changes]


def test_booted_node_skips_unavailable_roles_and_the_skipped_roles_of_the_stack() -> None:
    raw = read_stack_settings("a100-cluster")
    raw["node"] = {**raw.get("node", {}), "skip_roles": ["container"]}
    settings, _ = substitute_settings(raw, None, "nspawn")
    assert set(load_settings(settings, ROOT, "x").node.skip_roles) == {*UNAVAILABLE_ROLES, "container"}
    assert UNAVAILABLE_ROLES.keys() <= set(get_args(SystemRole))
    assert skip_reason("efa", "nspawn") == "this machine has no EFA device"
    assert skip_reason("container", "nspawn") is None  # the stack skips it, not the rehearsal
