"""A user error ends in one message and exit status 2, before a process group is created."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.problems import rejects
from tests.trainer.conftest import ROOT, TINY, Job, tiny
from trainer.data import open_data
from trainer.session import open_session
from trainer.settings import Environment, load_config
from trainer.storage import open_storage
from trainyard.config.training.models import HuggingFaceConfig
from trainyard.errors import InputError
from trainyard.models.dataset import INDEX

URIS = {"DATA_URI": "/d", "CHECKPOINT_URI": "/c", "RESULTS_URI": "/r"}
FOUR = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@dataclass(frozen=True)
class Mistake:
    """A change of a valid job of four processes, two per node, and the expected problem."""

    code: str
    key: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    text: str | None = None  # replaces the JSON object


def shape(**model: Any) -> dict[str, Any]:
    return {"model": {**TINY["model"], **model}}


def other(**model: Any) -> dict[str, Any]:
    return {"model": model}


def split(**parallel: Any) -> dict[str, Any]:
    return {"parallel": parallel}


SMALL = {"low_precision": {"minimum_features": 8}}
FLOAT8 = {"precision": "float8", **SMALL}
EXPERTS = {"architecture": "qwen3_moe", "experts": 6, "experts_per_token": 2, "expert_intermediate_size": 32}
MISTAKES = {
    # The file.
    "not JSON": Mistake("invalid_json", "--config", text="{not json"),
    "a list": Mistake("model_type", "config", text="[1]"),
    "an unknown key": Mistake("extra_forbidden", "config.stepz", {"stepz": 3}),
    "text for a number": Mistake("int_parsing", "config.steps", {"steps": "many"}),
    "a boolean for a number": Mistake("int_type", "config.steps", {"steps": True}),
    "more than 63 bits": Mistake("less_than", "config.seed", {"seed": 2**70}),
    "a negative number": Mistake("greater_than", "config.steps", {"steps": -1}),
    "an old key": Mistake("extra_forbidden", "config.checkpoint_every", {"checkpoint_every": 5}),
    "an unknown precision": Mistake("literal_error", "config.precision", {"precision": "int4"}),
    "a minimum learning rate above the maximum": Mistake(
        "learning_rate_below_minimum",
        "config.optimizer.min_learning_rate",
        {"optimizer": {"learning_rate": 1e-5, "min_learning_rate": 1e-4}},
    ),
    "asynchronous tensor parallelism without ranks": Mistake(
        "async_tensor_without_effect", "config.parallel.async_tensor", split(async_tensor=True)
    ),
    "asynchronous tensor parallelism without compilation": Mistake(
        "async_tensor_without_effect",
        "config.parallel.async_tensor",
        split(async_tensor=True, tensor=2) | {"memory": {"compile": False}},
    ),
    "muon with a loss scale": Mistake(
        "muon_unsupported", "config.optimizer.kind", {"optimizer": {"kind": "muon"}, "precision": "fp16"}
    ),
    "muon of experts": Mistake(
        "muon_unsupported", "config.optimizer.kind", {"optimizer": {"kind": "muon"}} | other(preset="174m-a42m")
    ),
    "float8 of a part of few tokens": Mistake(
        "low_precision_unaligned_sizes", "config.precision", shape(sequence_length=24) | split(context=2) | FLOAT8
    ),
    "float8 of layers that are too small": Mistake(
        "low_precision_without_effect", "config.precision", shape() | {"precision": "float8"}
    ),
    "a decay that is longer than the job": Mistake(
        "decay_longer_than_job",
        "config.optimizer.decay_steps",
        {"optimizer": {"schedule": "wsd", "decay_steps": 50, "warmup_steps": 10}, "steps": 55},
    ),
    "float8 of no block": Mistake(
        "low_precision_without_effect",
        "config.low_precision.bf16_blocks",
        shape() | FLOAT8 | {"low_precision": {"minimum_features": 8, "bf16_blocks": 2}},
    ),
    "muon of images": Mistake(
        "muon_unsupported", "config.optimizer.kind", {"optimizer": {"kind": "muon"}} | other(kind="images")
    ),
    "a beta of one": Mistake("less_than", "config.optimizer.beta2", {"optimizer": {"beta2": 1}}),
    "an unknown export": Mistake("literal_error", "config.checkpoint.export.0", {"checkpoint": {"export": ["onnx"]}}),
    "no ranks to trace": Mistake("too_short", "config.profile.ranks", {"profile": {"first_step": 1, "ranks": []}}),
    "a trace after the end": Mistake(
        "profile_after_last_step", "config.profile.first_step", {"profile": {"first_step": 99}}
    ),
    "a rank to trace that does not exist": Mistake(
        "rank_out_of_range", "config.profile.ranks", {"profile": {"first_step": 1, "ranks": [0, 4]}}
    ),
    # The model.
    "an unknown model": Mistake("union_tag_invalid", "config.model.kind", other(kind="llama")),
    "an unknown preset": Mistake("literal_error", "config.model.preset", other(preset="9b")),
    "a key of another kind": Mistake("extra_forbidden", "config.model.classes", shape(classes=10)),
    "uneven heads": Mistake("uneven_head_size", "config.model", shape(dim=33)),
    "heads that share unevenly": Mistake("uneven_key_value_heads", "config.model", shape(kv_heads=3)),
    "no model of transformers": Mistake("model_source_missing", "config.model", other(kind="hugging_face")),
    "two models": Mistake(
        "conflicting_model_sources", "config.model", other(kind="hugging_face", preset="gpt2", path="/m")
    ),
    "weights without a path": Mistake(
        "weights_without_path", "config.model", other(kind="hugging_face", preset="gpt2", weights=True)
    ),
    "another preset's task": Mistake(
        "preset_of_another_task", "config.model", other(kind="hugging_face", preset="bert-base")
    ),
    "custom model code": Mistake(
        "custom_model_code",
        "config.model.config",
        other(kind="hugging_face", config={"model_type": "x", "auto_map": {}}),
    ),
    "images too small": Mistake("greater_than_equal", "config.model.image_size", other(kind="images", image_size=8)),
    "float8 of another model": Mistake("low_precision_unsupported", "config.precision", other(kind="images") | FLOAT8),
    "float8 of odd sizes": Mistake(
        "low_precision_unaligned_sizes", "config.precision", shape(intermediate_size=72) | FLOAT8
    ),
    "float8 of narrow keys": Mistake(
        "low_precision_unaligned_sizes", "config.precision", shape(dim=32, heads=4, kv_heads=1) | FLOAT8
    ),
    "float8 with gradients of weights in bf16": Mistake(
        "low_precision_unsupported",
        "config.low_precision.float8_recipe",
        shape() | FLOAT8 | {"low_precision": {"float8_recipe": "rowwise_with_gw_hp"}},
    ),
    "float8 of small shards": Mistake(
        "low_precision_unaligned_sizes", "config.precision", shape() | split(tensor=2) | FLOAT8
    ),
    "float8 of an odd number of tokens": Mistake(
        "low_precision_unaligned_sizes", "config.precision", shape(sequence_length=31) | FLOAT8
    ),
    "recomputation of images": Mistake(
        "recomputation_unsupported",
        "config.memory.activation_checkpointing",
        other(kind="images") | {"memory": {"activation_checkpointing": "full"}},
    ),
    "experts of another architecture": Mistake("experts_without_architecture", "config.model", shape(experts=4)),
    "no number of experts": Mistake("experts_missing", "config.model", shape(architecture="qwen3_moe")),
    "more experts per token than experts": Mistake(
        "too_many_experts_per_token", "config.model", shape(**EXPERTS | {"experts_per_token": 7})
    ),
    "experts of an odd size": Mistake(
        "unaligned_experts", "config.model", shape(**EXPERTS | {"expert_intermediate_size": 12})
    ),
    "experts in float8": Mistake("experts_unsupported", "config.precision", shape(**EXPERTS) | FLOAT8),
    "mxfp8 with ddp": Mistake("low_precision_unsupported", "config.precision", shape() | {"precision": "mxfp8"}),
    "nvfp4 with tensor parallelism": Mistake(
        "low_precision_unsupported", "config.precision", shape() | split(tensor=2, data="fsdp") | {"precision": "nvfp4"}
    ),
    "nvfp4 of small sizes": Mistake(
        "low_precision_unaligned_sizes",
        "config.precision",
        shape() | split(data="fsdp") | SMALL | {"precision": "nvfp4"},
    ),
    "int8 weights of experts": Mistake(
        "experts_unsupported", "config.checkpoint.export", shape(**EXPERTS) | {"checkpoint": {"export": ["int8"]}}
    ),
    "low-rank matrices of experts": Mistake(
        "experts_unsupported",
        "config.lora.targets",
        shape(**EXPERTS, path="/m", weights=True) | {"lora": {"targets": ["up_proj"]}},
    ),
    # The ranks.
    "weights that no layout frees": Mistake(
        "reshard_without_effect", "config.parallel.reshard_after_forward", split(reshard_after_forward=False)
    ),
    "a pipeline of experts": Mistake(
        "parallelism_unsupported_by_experts",
        "config.parallel.pipeline",
        shape(**EXPERTS) | split(pipeline=2) | {"batch_size": 16},
    ),
    "expert parallelism without experts": Mistake(
        "expert_parallelism_unsupported", "config.parallel.expert", split(data="fsdp", expert=2)
    ),
    "expert parallelism of ddp": Mistake(
        "expert_parallelism_unsupported", "config.parallel.expert", shape(**EXPERTS) | split(expert=2)
    ),
    "experts that do not divide": Mistake(
        "expert_not_a_divisor", "config.parallel.expert", shape(**EXPERTS) | split(data="fsdp", expert=4)
    ),
    "ranks that the experts do not divide": Mistake(
        "expert_not_a_divisor", "config.parallel.expert", shape(**EXPERTS) | split(data="fsdp", expert=3)
    ),
    "recovery of shards": Mistake(
        "recovery_unsupported_by_layout", "config.recovery", {"recovery": "in_process"} | split(data="fsdp")
    ),
    "recovery of parts of layers": Mistake(
        "recovery_unsupported_by_layout", "config.recovery", {"recovery": "in_process"} | split(tensor=2)
    ),
    "a batch that does not split": Mistake("batch_size_not_divisible", "config.batch_size", {"batch_size": 9}),
    "too many tensor parallel ranks": Mistake(
        "processes_not_divisible",
        "config.parallel.tensor",
        split(tensor=3) | shape(heads=6, kv_heads=3, dim=48, intermediate_size=96, vocabulary=258, sequence_length=33),
    ),
    "more tensor parallel ranks than heads": Mistake(
        "tensor_parallel_not_a_divisor", "config.parallel.tensor", split(tensor=2) | shape(kv_heads=1)
    ),
    "tensor parallelism over nodes": Mistake(
        "tensor_parallel_not_a_divisor", "config.parallel.tensor", split(tensor=4) | shape(kv_heads=4)
    ),
    "reductions of ddp": Mistake(
        "reduce_per_step_without_effect", "config.parallel.reduce_per_step", split(reduce_per_step=True)
    ),
    "a group without hsdp": Mistake("shard_without_hsdp", "config.parallel.shard", split(shard=2)),
    "groups that do not divide": Mistake("shard_not_a_divisor", "config.parallel.shard", split(data="hsdp", shard=3)),
    "parts of sequences that do not divide": Mistake(
        "context_parallel_not_a_divisor", "config.parallel.context", split(context=4) | shape(sequence_length=36)
    ),
    "parts of sequences of images": Mistake(
        "parallelism_unsupported_by_model", "config.parallel.context", split(context=2) | other(kind="images")
    ),
    "more parts of sequences than processes": Mistake(
        "processes_not_divisible", "config.parallel.context", split(context=8)
    ),
    "groups that split a sequence": Mistake(
        "shard_not_a_multiple", "config.parallel.shard", split(data="hsdp", shard=2, context=4)
    ),
    "too few micro-batches": Mistake(
        "too_few_micro_batches", "config.parallel.pipeline", split(pipeline=2) | {"batch_size": 4}
    ),
    "interleaved stages without a pipeline": Mistake(
        "schedule_without_pipeline", "config.parallel.schedule", split(schedule="interleaved_1f1b")
    ),
    "several stages without interleaving": Mistake(
        "stages_without_interleaving",
        "config.parallel.stages_per_rank",
        split(pipeline=2, stages_per_rank=2) | {"batch_size": 16},
    ),
    "interleaved stages without layers": Mistake(
        "more_stages_than_layers",
        "config.parallel.pipeline",
        split(pipeline=2, schedule="interleaved_1f1b") | {"batch_size": 16},
    ),
    "uneven rounds of micro-batches": Mistake(
        "uneven_rounds",
        "config.batch_size",
        split(pipeline=2, schedule="interleaved_1f1b") | shape(layers=4) | {"batch_size": 20},
    ),
    "more stages than layers": Mistake(
        "more_stages_than_layers", "config.parallel.pipeline", split(pipeline=4) | {"batch_size": 16}
    ),
    "a pipeline with tied embeddings": Mistake(
        "tied_embeddings_across_stages", "config.parallel.pipeline", split(pipeline=2) | shape(tie_embeddings=True)
    ),
    "a pipeline of images": Mistake(
        "parallelism_unsupported_by_model",
        "config.parallel.pipeline",
        split(pipeline=2) | other(kind="images") | {"batch_size": 16},
    ),
    # The environment.
    "no dataset": Mistake("variable_missing", "DATA_URI", environment={"DATA_URI": None}),
    "an empty URI": Mistake("variable_missing", "RESULTS_URI", environment={"RESULTS_URI": ""}),
    "text for a world": Mistake("invalid_integer", "WORLD_SIZE", environment={"WORLD_SIZE": "four"}),
    "an empty world": Mistake("invalid_integer", "WORLD_SIZE", environment={"WORLD_SIZE": "0"}),
    "a rank above the world size": Mistake("rank_out_of_range", "RANK", environment={"RANK": "4"}),
    "a local rank above the local world size": Mistake(
        "rank_out_of_range", "LOCAL_RANK", environment={"LOCAL_RANK": "2"}
    ),
    "uneven nodes": Mistake("nodes_of_unequal_size", "WORLD_SIZE", environment={"LOCAL_WORLD_SIZE": "3"}),
}
each_mistake = pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)


def write_config(mistake: Mistake, folder: Path) -> Path:
    file = folder / "config.json"
    good = TINY | {"batch_size": 8}
    file.write_text(json.dumps(good | mistake.config) if mistake.text is None else mistake.text)
    return file


def variables(mistake: Mistake) -> dict[str, str]:
    merged = {**URIS, **FOUR, **mistake.environment}
    return {name: value for name, value in merged.items() if value is not None}


def read(file: Path, variables: dict[str, str]) -> None:
    """Read the environment and the configuration, as the program does at its start."""
    environment = Environment.read(variables)
    load_config(file, environment.world_size, environment.local_world_size)


@each_mistake
def test_mistake_is_the_only_reported_problem(mistake: Mistake, tmp_path: Path) -> None:
    file = write_config(mistake, tmp_path)
    with pytest.raises(InputError) as caught:
        read(file, variables(mistake))
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == (mistake.code, mistake.key)


def test_unchanged_job_is_valid(tmp_path: Path) -> None:
    read(write_config(Mistake("", ""), tmp_path), {**URIS, **FOUR})


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"steps": 7}', encoding="utf-8-sig")
    assert load_config(file, 1, 1).steps == 7


@pytest.mark.parametrize("name", ["an unknown model", "a batch that does not split", "text for a world", "not JSON"])
def test_program_reports_one_line_before_importing_torch(name: str, tmp_path: Path) -> None:
    file = write_config(MISTAKES[name], tmp_path)
    program = [sys.executable, "-X", "importtime", "-m", "trainer", "--config", str(file)]
    path = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    process = subprocess.run(program, env=variables(MISTAKES[name]) | path, capture_output=True, text=True, timeout=60)
    (message,) = [line for line in process.stderr.splitlines() if not line.startswith("import time:")]
    assert process.returncode == 2
    assert message.startswith(f"{MISTAKES[name].key} = ")
    assert " torch\n" not in process.stderr


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    file = write_config(Mistake("", "", {"batch_size": 9} | split(shard=2)), tmp_path)
    with pytest.raises(InputError) as caught:
        load_config(file, 4, 2)
    assert [problem.key for problem in caught.value.problems] == ["config.parallel.shard", "config.batch_size"]
    with pytest.raises(InputError) as caught:
        Environment.read({"CHECKPOINT_URI": "/c", "RANK": "first"})
    assert [problem.key for problem in caught.value.problems] == ["DATA_URI", "RESULTS_URI", "RANK"]


def test_missing_configuration_is_reported(tmp_path: Path) -> None:
    with rejects("config_not_readable", "none.json", "No such file"):
        load_config(tmp_path / "none.json", 1, 1)


@pytest.mark.parametrize("name", ["data_uri", "checkpoint_uri", "results_uri"])
def test_missing_bucket_is_reported_before_the_process_group(name: str, alone: Environment, s3: Any) -> None:
    change: dict[str, Any] = {name: "s3://nowhere/x/"}
    environment = replace(alone, **change)
    with rejects("bucket_missing", name.upper(), "s3://nowhere/x/"):
        open_location(name, environment)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("uri", "code"),
    [("/nowhere/at/all", "folder_missing"), ("s3:/runs/x", "invalid_uri"), ("s4://runs/x", "invalid_uri")],
)
def test_invalid_uri_is_reported(uri: str, code: str, alone: Environment, s3: Any) -> None:
    with rejects(code, "DATA_URI", uri):
        open_location("data_uri", replace(alone, data_uri=uri))


def test_folder_without_a_dataset_is_reported(alone: Environment, tmp_path: Path) -> None:
    with rejects("dataset_index_missing", "DATA_URI", str(tmp_path)):
        open_location("data_uri", replace(alone, data_uri=str(tmp_path)))


def test_model_that_does_not_separate_documents_is_refused(alone: Environment, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "data")
    index = json.loads((dataset / INDEX).read_text())
    (tmp_path / "data" / INDEX).write_text(json.dumps(index | {"end": ord("\n")}))
    environment = replace(alone, data_uri=str(tmp_path / "data"))
    bloom = {"model_type": "bloom", "vocab_size": 256, "hidden_size": 32, "n_layer": 1, "n_head": 2}
    model = {"kind": "hugging_face", "config": bloom, "sequence_length": 32}
    with ExitStack() as stack:
        with rejects("documents_not_separable", "config.data.separate_documents"):
            open_session(tiny(model=model), environment, torch.device("cpu"), stack)
        open_session(tiny(model=model, data={"separate_documents": False}), environment, torch.device("cpu"), stack)


def test_shard_with_another_hash_ends_the_job_in_one_line(job: Callable[..., Job], dataset: Path) -> None:
    damaged = job("damaged")
    data = damaged.folder / "data"
    shutil.copytree(dataset, data)
    (data / "held-out.bin").write_bytes(b"x" * (data / "held-out.bin").stat().st_size)
    process = damaged.run(1, DATA_URI=str(data))
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].startswith(f"{data}/held-out.bin has SHA-256 ")
    assert "Traceback" not in process.stderr


def test_shard_with_too_few_bytes_is_reported(alone: Environment, dataset: Path, tmp_path: Path) -> None:
    index = json.loads((dataset / INDEX).read_text())
    index["train"][1]["count"] += 1
    (tmp_path / INDEX).write_text(json.dumps(index))
    with rejects("value_error", "b.bin has 20000 bytes", "20001"):
        open_location("data_uri", replace(alone, data_uri=str(tmp_path)))


def open_location(name: str, environment: Environment) -> None:
    """Open the storage as the loop does, before the process group is created."""
    if name == "data_uri":
        open_data(tiny(), environment, rank=0, ranks=1).close()
    else:
        open_storage(getattr(environment, name), name.upper()).require(create=True)


def test_model_path_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model": {"kind": "hugging_face", "path": "$MODEL_PATH"}}')
    monkeypatch.setenv("MODEL_PATH", "/scratch/models/llama")
    model = load_config(file, 1, 1).model
    assert isinstance(model, HuggingFaceConfig)
    assert model.path == "/scratch/models/llama"
    monkeypatch.delenv("MODEL_PATH")
    with pytest.raises(InputError, match="MODEL_PATH is not set"):
        load_config(file, 1, 1)
