"""Substitution changes only the necessary settings of a stack and lists each change."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from rehearsal.sources import Sources
from rehearsal.substitutions import UNAVAILABLE_ROLES, skip_reason, substitute_settings
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.config.shared_settings import SystemRole
from trainyard.config.training.models import CustomModelConfig, DecoderConfig, HuggingFaceConfig
from trainyard.errors import InputError
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


def test_interval_in_steps_replaces_an_interval_in_seconds() -> None:
    raw = read_stack_settings("a100-cluster")
    raw["job"]["train"]["checkpoint"] = {"interval_seconds": 600}
    settings, _ = substitute_settings(raw, 3)
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    assert (train.checkpoint.interval_steps, train.checkpoint.interval_seconds) == (10, None)


@pytest.mark.parametrize(
    ("nodes", "parallel", "expected"),
    [
        (4, {"data": "fsdp"}, {"data": "fsdp"}),
        (4, {"data": "hsdp"}, {"data": "hsdp", "shard": 2}),
        (3, {"data": "hsdp", "shard": 4}, {"data": "hsdp", "shard": 2}),
        (4, {"data": "fsdp", "tensor": 8, "reshard_after_forward": False}, {"data": "fsdp", "tensor": 2}),
        (4, {"pipeline": 4}, {"pipeline": 2}),
        (4, {"data": "fsdp", "context": 16}, {"data": "fsdp", "context": 8}),
        (4, {"data": "hsdp", "context": 4}, {"data": "hsdp", "shard": 2, "context": 2}),
        (4, {"tensor": 8, "async_tensor": True}, {"tensor": 2}),
        (4, {"pipeline": 2, "schedule": "interleaved_1f1b"}, {"pipeline": 2}),
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
    is_smaller = bool(parallel.keys() & {"tensor", "context"}) or parallel.get("pipeline", 0) > 2
    assert bool(changes_of_parallelism) == is_smaller


def test_gpu_stack_keeps_its_experts_and_their_parallelism() -> None:
    raw = read_stack_settings("a100-cluster")
    parallel = {"data": "fsdp", "expert": 8}
    raw["job"]["train"] |= {"model": {"preset": "174m-a42m"}, "parallel": parallel, "batch_size": 768}
    settings, changes = substitute_settings(raw, 3)
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    assert isinstance(train.model, DecoderConfig)
    assert (train.model.experts, train.parallel.expert) == (4, 2)
    assert "fsdp, tensor 1, pipeline 1, expert 8" in [change.original for change in changes]


@pytest.mark.parametrize("small_settings", [{"dim": 64}, None])
def test_gpu_stack_keeps_its_custom_model_with_small_settings(small_settings: dict[str, int] | None) -> None:
    raw = read_stack_settings("a100-cluster")
    model = {"kind": "custom", "name": "convolutions", "vocabulary": 32_000, "sequence_length": 2048}
    raw["job"]["train"]["model"] = {**model, "settings": {"dim": 4096, "width": 4}, "small_settings": small_settings}
    raw["job"]["train"]["data"] = {"separate_documents": False}
    settings, _ = substitute_settings(raw, None)
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    assert not train.data.separate_documents
    if small_settings is None:
        assert train.model.kind == "decoder"
    else:
        assert isinstance(train.model, CustomModelConfig)
        assert train.model.settings == {"dim": 64, "width": 4}
        assert train.model.sequence_length == 64


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
    assert (after.data, after.dataset) == ("s3", "web-text")
    assert "a dataset that nodes read from FSx for Lustre" in [change.original for change in changes]


def test_booted_node_skips_unavailable_roles_and_the_skipped_roles_of_the_stack() -> None:
    raw = read_stack_settings("a100-cluster")
    raw["node"] = {**raw.get("node", {}), "skip_roles": ["container"]}
    settings, _ = substitute_settings(raw, None, "nspawn")
    assert set(load_settings(settings, ROOT, "x").node.skip_roles) == {*UNAVAILABLE_ROLES, "container"}
    assert UNAVAILABLE_ROLES.keys() <= set(get_args(SystemRole))
    assert skip_reason("efa", "nspawn") == "this machine has no EFA device"
    assert skip_reason("container", "nspawn") is None  # the stack skips it, not the rehearsal


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}


def hugging_face_stack(**model: Any) -> dict[str, Any]:
    """The settings of a GPU stack that trains a Hugging Face model."""
    raw = read_stack_settings("a100-cluster")
    raw["job"]["train"] = {"model": {"kind": "hugging_face", **model}, "batch_size": 64, "micro_batch_size": 2}
    return raw


def codes(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def test_hugging_face_model_keeps_its_class_and_is_shrunk() -> None:
    settings, changes = substitute_settings(hugging_face_stack(config=LLAMA), 2)
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    assert isinstance(train.model, HuggingFaceConfig)
    assert train.model.config["model_type"] == "llama"
    assert (train.model.config["num_hidden_layers"], train.model.config["hidden_size"]) == (2, 64)
    assert any(change.replacement.startswith("LlamaForCausalLM with ") for change in changes)


def test_hugging_face_model_is_checked_at_full_size() -> None:
    with pytest.raises(InputError, match="not a multiple of the number of attention heads") as error:
        substitute_settings(hugging_face_stack(config={**LLAMA, "num_attention_heads": 30}), 2)
    assert codes(error) == ["model_config_rejected"]


def test_model_of_a_folder_needs_a_copy() -> None:
    with pytest.raises(InputError, match="--model FOLDER") as error:
        substitute_settings(hugging_face_stack(path="/fsx/models/llama"), 2)
    assert codes(error) == ["model_not_readable"]


def test_model_of_a_folder_is_that_of_the_copy(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["LlamaForCausalLM"]}))
    raw = hugging_face_stack(path="/fsx/models/llama", weights=True)
    settings, changes = substitute_settings(raw, 2, sources=Sources(model=tmp_path))
    job = load_settings(settings, ROOT, "x").job
    assert job.model == "dataset:rehearsed-model"
    assert job.train is not None
    assert isinstance(job.train.model, HuggingFaceConfig)
    assert (job.train.model.path, job.train.model.weights) == ("$MODEL_PATH", True)
    assert "the folder /fsx/models/llama of the nodes" in [change.original for change in changes]


def test_fine_tuning_keeps_the_model_the_sequence_length_and_lora(tmp_path: Path) -> None:
    raw = read_stack_settings("finetune")
    settings, _ = substitute_settings(raw, None, sources=Sources(model=tmp_path, data=tmp_path))
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    assert isinstance(train.model, DecoderConfig)
    assert train.model.model_dump() == {
        "kind": "decoder",
        "path": "$MODEL_PATH",
        "weights": True,
        "sequence_length": 2048,
    }
    assert train.lora is not None
    with pytest.raises(InputError) as error:
        substitute_settings(raw, None)
    assert codes(error) == ["model_not_readable"]


def test_data_of_the_user_replaces_the_builtin_corpus(tmp_path: Path) -> None:
    settings, _ = substitute_settings(read_stack_settings("local"), None, sources=Sources(data=tmp_path))
    assert not load_settings(settings, ROOT, "x").job.builtin_corpus


def test_data_of_the_user_keeps_the_vocabulary_of_the_model(tmp_path: Path) -> None:
    raw = read_stack_settings("a100-cluster")
    raw["job"]["train"]["model"] = {"preset": "1b"}
    settings, _ = substitute_settings(raw, 2, sources=Sources(data=tmp_path))
    train = load_settings(settings, ROOT, "x").job.train
    assert train is not None
    assert isinstance(train.model, DecoderConfig)
    assert (train.model.dim, train.model.vocabulary) == (64, 128_256)


def test_unused_folders_are_refused(tmp_path: Path) -> None:
    raw = read_stack_settings("custom-job")
    for sources, code in ((Sources(data=tmp_path), "data_not_used"), (Sources(model=tmp_path), "model_not_used")):
        with pytest.raises(InputError) as error:
            substitute_settings(raw, None, sources=sources)
        assert codes(error) == [code]


def test_dataset_of_a_custom_job_is_the_builtin_corpus() -> None:
    raw = read_stack_settings("custom-job")
    raw["job"]["dataset"] = "books"
    settings, changes = substitute_settings(raw, None)
    assert load_settings(settings, ROOT, "x").job.builtin_corpus
    assert "the dataset books" in [change.original for change in changes]


def test_images_without_data_are_refused_on_cpus() -> None:
    raw = read_stack_settings("local")
    raw["job"] |= {"builtin_corpus": False, "dataset": "photos", "train": {"model": {"kind": "images"}}}
    with pytest.raises(InputError, match="--data FOLDER") as error:
        substitute_settings(raw, None)
    assert codes(error) == ["data_not_readable"]
