"""A user error ends in one message and exit status 2, before a process group is created."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import ROOT, TINY, Job, tiny
from trainer.data import open_data
from trainer.settings import Environment, load_config
from trainer.storage import open_storage
from trainyard.errors import InputError
from trainyard.models.dataset import INDEX

URIS = {"DATA_URI": "/d", "CHECKPOINT_URI": "/c", "RESULTS_URI": "/r"}
FOUR = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@dataclass(frozen=True)
class Mistake:
    """A change of a valid job of four processes, two per node, and the expected message."""

    message: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    text: str | None = None  # replaces the JSON object


def shape(**model: Any) -> dict[str, Any]:
    return {"model": {**TINY["model"], **model}}


def other(**model: Any) -> dict[str, Any]:
    return {"model": model}


def split(**parallel: Any) -> dict[str, Any]:
    return {"parallel": parallel}


FLOAT8 = {"precision": "float8"}
MISTAKES = {
    # The file.
    "not JSON": Mistake(
        "config.json': is not valid JSON: key must be a string at line 1 column 2. Fix the syntax", text="{not json"
    ),
    "a list": Mistake("config = [1]: not a mapping", text="[1]"),
    "an unknown key": Mistake("config.stepz = 3: unknown key", {"stepz": 3}),
    "text for a number": Mistake("config.steps = 'many': not an integer", {"steps": "many"}),
    "a boolean for a number": Mistake("config.steps = True: not an integer", {"steps": True}),
    "more than 63 bits": Mistake("config.seed = 1180591620717411303424: must be less than", {"seed": 2**70}),
    "a negative number": Mistake("config.steps = -1: must be greater than 0", {"steps": -1}),
    "an old key": Mistake("config.checkpoint_every = 5: unknown key", {"checkpoint_every": 5}),
    "an unknown precision": Mistake("'int4': not one of 'fp32', 'bf16', 'fp16' or 'float8'", {"precision": "int4"}),
    "a minimum learning rate above the maximum": Mistake(
        "config.optimizer = {'learning_rate': 1e-05}: min_learning_rate 0.0003 is above learning_rate 1e-05",
        {"optimizer": {"learning_rate": 1e-5}},
    ),
    "a beta of one": Mistake("config.optimizer.beta2 = 1: must be less than 1", {"optimizer": {"beta2": 1}}),
    "an unknown export": Mistake(
        "config.checkpoint.export.0 = 'onnx': not one of", {"checkpoint": {"export": ["onnx"]}}
    ),
    "no ranks to trace": Mistake(
        "config.profile.ranks = []: has fewer than 1 entries", {"profile": {"first_step": 1, "ranks": []}}
    ),
    "a trace after the end": Mistake("config.profile.first_step = 99: steps is 20", {"profile": {"first_step": 99}}),
    "a rank to trace that does not exist": Mistake(
        "config.profile.ranks = [0, 4]: rank 4 does not exist",
        {"profile": {"first_step": 1, "ranks": [0, 4]}},
    ),
    # The model.
    "an unknown model": Mistake(
        "config.model.kind = 'llama': not one of 'decoder', 'hugging_face', 'images'. Write", other(kind="llama")
    ),
    "an unknown preset": Mistake("config.model.preset = '9b': not one of '1m', '10m'", other(preset="9b")),
    "a key of another kind": Mistake("config.model.classes = 10: unknown key", shape(classes=10)),
    "uneven heads": Mistake("dim 33 must be an even multiple of heads 4", shape(dim=33)),
    "heads that share unevenly": Mistake("heads 4 must be a multiple of kv_heads 3", shape(kv_heads=3)),
    "no model of transformers": Mistake(
        "config.model = {'kind': 'hugging_face'}: has no model",
        other(kind="hugging_face"),
    ),
    "two models": Mistake("has both preset and path", other(kind="hugging_face", preset="gpt2", path="/m")),
    "weights without a path": Mistake(
        "weights is true, and path is not set", other(kind="hugging_face", preset="gpt2", weights=True)
    ),
    "another preset's task": Mistake(
        "preset bert-base is for the task masked", other(kind="hugging_face", preset="bert-base")
    ),
    "custom model code": Mistake(
        "auto_map needs custom model code, which is not run",
        other(kind="hugging_face", config={"model_type": "x", "auto_map": {}}),
    ),
    "images too small": Mistake("config.model.image_size = 8: must be 32 or more", other(kind="images", image_size=8)),
    "float8 of another model": Mistake("precision float8 is for the built-in decoder", other(kind="images") | FLOAT8),
    "float8 of odd sizes": Mistake(
        "float8 needs multiples of 16, and the model has hidden 72", shape(hidden=72) | FLOAT8
    ),
    "float8 of narrow keys": Mistake(
        "the model has kv_heads x dim / heads 8",
        shape(dim=32, heads=4, kv_heads=1) | FLOAT8,
    ),
    "float8 of small shards": Mistake(
        "the model has kv_heads x dim / heads 16 / parallel.tensor 2", shape() | split(tensor=2) | FLOAT8
    ),
    "float8 of an odd number of tokens": Mistake(
        "the model has micro_batch_size x sequence_length 62", shape(sequence_length=31) | FLOAT8
    ),
    "recomputation of images": Mistake(
        "config.memory.activation_checkpointing = 'full': recomputation would update the statistics",
        other(kind="images") | {"memory": {"activation_checkpointing": "full"}},
    ),
    # The ranks.
    "a batch that does not split": Mistake(
        "config.batch_size = 9: batch_size 9 is not a multiple of micro_batch_size 2 x 4 processes", {"batch_size": 9}
    ),
    "too many tensor parallel ranks": Mistake(
        "config.parallel.tensor = 3: tensor 3 x pipeline 1 does not divide 4 processes",
        split(tensor=3) | shape(heads=6, kv_heads=3, dim=48, hidden=96, vocabulary=258, sequence_length=33),
    ),
    "more tensor parallel ranks than heads": Mistake(
        "config.parallel.tensor = 2: does not divide the model's kv_heads 1", split(tensor=2) | shape(kv_heads=1)
    ),
    "tensor parallelism over nodes": Mistake(
        "config.parallel.tensor = 4: does not divide the 2 processes of a node",
        split(tensor=4) | shape(kv_heads=4),
    ),
    "a group without hsdp": Mistake("config.parallel.shard = 2: parallel.data is ddp", split(shard=2)),
    "groups that do not divide": Mistake(
        "config.parallel.shard = 3: shard groups of 3 do not divide the 4", split(data="hsdp", shard=3)
    ),
    "too few micro-batches": Mistake(
        "config.parallel.pipeline = 2: 2 stages need as many micro-batches, and a rank has 1",
        split(pipeline=2) | {"batch_size": 4},
    ),
    "more stages than layers": Mistake(
        "config.parallel.pipeline = 4: the model has 2 layers", split(pipeline=4) | {"batch_size": 16}
    ),
    "a pipeline with tied embeddings": Mistake(
        "config.parallel.pipeline = 2: tie_embeddings is true", split(pipeline=2) | shape(tie_embeddings=True)
    ),
    "a pipeline of images": Mistake(
        "config.parallel.pipeline = 2: only the built-in decoder supports it",
        split(pipeline=2) | other(kind="images") | {"batch_size": 16},
    ),
    # The environment.
    "no dataset": Mistake("DATA_URI = None: is not set. Set it to the dataset", environment={"DATA_URI": None}),
    "an empty URI": Mistake("RESULTS_URI = None: is not set", environment={"RESULTS_URI": ""}),
    "text for a world": Mistake(
        "WORLD_SIZE = 'four': is not an integer of 1 or more", environment={"WORLD_SIZE": "four"}
    ),
    "an empty world": Mistake("WORLD_SIZE = '0': is not an integer of 1", environment={"WORLD_SIZE": "0"}),
    "a rank above the world size": Mistake(
        "RANK = 4: must be less than WORLD_SIZE, which is 4", environment={"RANK": "4"}
    ),
    "a local rank above the local world size": Mistake(
        "LOCAL_RANK = 2: must be less than LOCAL_WORLD_SIZE", environment={"LOCAL_RANK": "2"}
    ),
    "uneven nodes": Mistake(
        "WORLD_SIZE = 4: is not a multiple of LOCAL_WORLD_SIZE, which is 3", environment={"LOCAL_WORLD_SIZE": "3"}
    ),
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
    assert mistake.message in str(problem)
    assert "[" not in problem.key


def test_unchanged_job_is_valid(tmp_path: Path) -> None:
    read(write_config(Mistake(""), tmp_path), {**URIS, **FOUR})


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
    assert MISTAKES[name].message in message
    assert " torch\n" not in process.stderr


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    file = write_config(Mistake("", {"batch_size": 9} | split(shard=2)), tmp_path)
    with pytest.raises(InputError) as caught:
        load_config(file, 4, 2)
    assert [problem.key for problem in caught.value.problems] == ["config.parallel.shard", "config.batch_size"]
    with pytest.raises(InputError) as caught:
        Environment.read({"CHECKPOINT_URI": "/c", "RANK": "first"})
    assert [problem.key for problem in caught.value.problems] == ["DATA_URI", "RESULTS_URI", "RANK"]


def test_missing_configuration_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--config = .*none.json': cannot be read: No such file"):
        load_config(tmp_path / "none.json", 1, 1)


@pytest.mark.parametrize("name", ["data_uri", "checkpoint_uri", "results_uri"])
def test_missing_bucket_is_reported_before_the_process_group(name: str, alone: Environment, s3: Any) -> None:
    message = (
        f"{name.upper()} = 's3://nowhere/x/': the bucket does not exist. Create the bucket, or set another bucket."
    )
    change: dict[str, Any] = {name: "s3://nowhere/x/"}
    environment = replace(alone, **change)
    with pytest.raises(InputError) as caught:
        open_location(name, environment)
    assert str(caught.value) == message
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/nowhere/at/all", "DATA_URI = '/nowhere/at/all/': the folder does not exist. Set it to an existing folder."),
        ("s3:/runs/x", "DATA_URI = 's3:/runs/x/': is not a folder or s3://bucket/prefix/. Correct the URI."),
        ("s4://runs/x", "DATA_URI = 's4://runs/x/': is not a folder or s3://bucket/prefix/. Correct the URI."),
    ],
)
def test_invalid_uri_is_reported(uri: str, message: str, alone: Environment, s3: Any) -> None:
    with pytest.raises(InputError) as caught:
        open_location("data_uri", replace(alone, data_uri=uri))
    assert str(caught.value) == message


def test_folder_without_a_dataset_is_reported(alone: Environment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"DATA_URI = .* no dataset.json\. Create the dataset with"):
        open_location("data_uri", replace(alone, data_uri=str(tmp_path)))


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
    message = r"b\.bin has 20000 bytes, .*20001"
    with pytest.raises(InputError, match=message):
        open_location("data_uri", replace(alone, data_uri=str(tmp_path)))


def open_location(name: str, environment: Environment) -> None:
    """Open the storage as the loop does, before the process group is created."""
    if name == "data_uri":
        open_data(tiny(), environment, rank=0, ranks=1).close()
    else:
        open_storage(getattr(environment, name), name.upper()).require(create=True)
