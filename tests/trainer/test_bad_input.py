"""What a user gets wrong ends in one clear message and status 2, before any process group is made."""

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
from trainer.settings import Environment, read_config
from trainer.storage import open_storage
from trainyard.base import InputError
from trainyard.models.dataset import INDEX

PLACES = {"DATA_URI": "/d", "CHECKPOINT_URI": "/c", "RESULTS_URI": "/r"}
FOUR = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@dataclass(frozen=True)
class Mistake:
    """What is changed in a good job of four processes, two a node, and what must be said of it."""

    said: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    text: str | None = None  # in place of a JSON object


def shape(**model: Any) -> dict[str, Any]:
    return {"model": {**TINY["model"], **model}}


def other(**model: Any) -> dict[str, Any]:
    return {"model": model}


def split(**parallel: Any) -> dict[str, Any]:
    return {"parallel": parallel}


FLOAT8 = {"precision": "float8"}
MISTAKES = {
    # The file.
    "not JSON": Mistake("config.json': is no JSON: key must be a string at line 1 column 2. Mend it", text="{not json"),
    "a list": Mistake("config = [1]: not an object with keys of its own", text="[1]"),
    "an unknown key": Mistake(
        "config.stepz = 3: no such key. Remove it, or spell it as docs/settings.md", {"stepz": 3}
    ),
    "text for a number": Mistake("config.steps = 'many': not a whole number", {"steps": "many"}),
    "truth for a number": Mistake("config.steps = True: not a whole number", {"steps": True}),
    "more than 63 bits": Mistake("config.seed = 1180591620717411303424: must be less than", {"seed": 2**70}),
    "a negative number": Mistake("config.steps = -1: must be greater than 0", {"steps": -1}),
    "an old key": Mistake("config.checkpoint_every = 5: no such key", {"checkpoint_every": 5}),
    "an unknown precision": Mistake("'int4': not one of 'fp32', 'bf16', 'fp16' or 'float8'", {"precision": "int4"}),
    "a floor above the peak": Mistake(
        "config.optimizer = {'learning_rate': 1e-05}: min_learning_rate 0.0003 is above learning_rate 1e-05",
        {"optimizer": {"learning_rate": 1e-5}},
    ),
    "a beta of one": Mistake("config.optimizer.beta2 = 1: must be less than 1", {"optimizer": {"beta2": 1}}),
    "an unknown export": Mistake(
        "config.checkpoint.export.0 = 'onnx': not one of", {"checkpoint": {"export": ["onnx"]}}
    ),
    "no ranks to trace": Mistake("config.profile.ranks = []: too short", {"profile": {"first_step": 1, "ranks": []}}),
    "a trace after the end": Mistake("config.profile.first_step = 99: steps is 20", {"profile": {"first_step": 99}}),
    "a rank to trace that is not there": Mistake(
        "config.profile.ranks = [0, 4]: there is no rank 4 among 4 processes",
        {"profile": {"first_step": 1, "ranks": [0, 4]}},
    ),
    # The model.
    "an unknown model": Mistake(
        "config.model.kind = 'llama': not one of 'decoder', 'hugging_face', 'images'. Write", other(kind="llama")
    ),
    "an unknown preset": Mistake("config.model.preset = '9b': not one of '1m', '10m'", other(preset="9b")),
    "a key of another kind": Mistake("config.model.classes = 10: no such key", shape(classes=10)),
    "uneven heads": Mistake("dim 33 must be an even multiple of heads 4", shape(dim=33)),
    "heads that share unevenly": Mistake("heads 4 must be a multiple of kv_heads 3", shape(kv_heads=3)),
    "no model of transformers": Mistake(
        "config.model = {'kind': 'hugging_face'}: names no model: give preset, path, or config",
        other(kind="hugging_face"),
    ),
    "two models": Mistake("has both preset and path: name one", other(kind="hugging_face", preset="gpt2", path="/m")),
    "weights from nowhere": Mistake(
        "weights: true, and no path that holds any", other(kind="hugging_face", preset="gpt2", weights=True)
    ),
    "another preset's task": Mistake(
        "preset bert-base is for the task masked", other(kind="hugging_face", preset="bert-base")
    ),
    "code of the model's own": Mistake(
        "auto_map asks for code of the model's own, which is not run",
        other(kind="hugging_face", config={"model_type": "x", "auto_map": {}}),
    ),
    "images too small": Mistake("config.model.image_size = 8: must be 32 or more", other(kind="images", image_size=8)),
    "float8 of another model": Mistake("precision float8 is for the built-in decoder", other(kind="images") | FLOAT8),
    "float8 of odd sizes": Mistake(
        "float8 needs multiples of 16, and the model has hidden 72", shape(hidden=72) | FLOAT8
    ),
    "float8 of keys too narrow": Mistake(
        "the model has kv_heads x dim / heads 8",
        shape(dim=32, heads=4, kv_heads=1) | FLOAT8,
    ),
    "float8 of pieces too small": Mistake(
        "the model has kv_heads x dim / heads 16 / parallel.tensor 2", shape() | split(tensor=2) | FLOAT8
    ),
    "float8 of an odd number of tokens": Mistake(
        "the model has micro_batch_size x sequence_length 62", shape(sequence_length=31) | FLOAT8
    ),
    "images computed again": Mistake(
        "config.memory.activation_checkpointing = 'full': an image model's batch normalisation would count twice",
        other(kind="images") | {"memory": {"activation_checkpointing": "full"}},
    ),
    # The ranks.
    "a batch that does not split": Mistake(
        "config.batch_size = 9: batch_size 9 is not a multiple of micro_batch_size 2 x 4 processes", {"batch_size": 9}
    ),
    "too many pieces": Mistake(
        "config.parallel.tensor = 3: tensor 3 x pipeline 1 does not divide 4 processes",
        split(tensor=3) | shape(heads=6, kv_heads=3, dim=48, hidden=96, vocabulary=258, sequence_length=33),
    ),
    "pieces that the model has not": Mistake(
        "config.parallel.tensor = 2: does not divide the model's kv_heads 1", split(tensor=2) | shape(kv_heads=1)
    ),
    "a tensor over nodes": Mistake(
        "config.parallel.tensor = 4: a node has 2 processes, and each tensor's pieces belong on one node",
        split(tensor=4) | shape(kv_heads=4),
    ),
    "a group without hsdp": Mistake("config.parallel.shard = 2: data is ddp, and only hsdp has", split(shard=2)),
    "groups that do not divide": Mistake(
        "config.parallel.shard = 3: groups of 3 do not divide the 4 processes", split(data="hsdp", shard=3)
    ),
    "too few micro-batches": Mistake(
        "config.parallel.pipeline = 2: its 2 stages need as many micro-batches, and a rank has 1",
        split(pipeline=2) | {"batch_size": 4},
    ),
    "more stages than layers": Mistake(
        "config.parallel.pipeline = 4: the model has 2 layers", split(pipeline=4) | {"batch_size": 16}
    ),
    "one matrix at both ends": Mistake(
        "config.parallel.pipeline = 2: tie_embeddings is true", split(pipeline=2) | shape(tie_embeddings=True)
    ),
    "stages of images": Mistake(
        "config.parallel.pipeline = 2: only the built-in decoder is split so, and the model is images",
        split(pipeline=2) | other(kind="images") | {"batch_size": 16},
    ),
    # The environment.
    "no dataset": Mistake(
        "DATA_URI = None: is not in the environment. Set it to the dataset", environment={"DATA_URI": None}
    ),
    "an empty place": Mistake("RESULTS_URI = None: is not in the environment", environment={"RESULTS_URI": ""}),
    "text for a world": Mistake(
        "WORLD_SIZE = 'four': is not a whole number of 1 or more", environment={"WORLD_SIZE": "four"}
    ),
    "an empty world": Mistake("WORLD_SIZE = '0': is not a whole number of 1", environment={"WORLD_SIZE": "0"}),
    "a rank of no world": Mistake("RANK = 4: ranks count from 0, and WORLD_SIZE is 4", environment={"RANK": "4"}),
    "a rank of no node": Mistake(
        "LOCAL_RANK = 2: ranks count from 0, and LOCAL_WORLD_SIZE", environment={"LOCAL_RANK": "2"}
    ),
    "uneven nodes": Mistake("WORLD_SIZE = 4: a node has 3", environment={"LOCAL_WORLD_SIZE": "3"}),
}
each = pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)


def written(mistake: Mistake, folder: Path) -> Path:
    file = folder / "config.json"
    good = TINY | {"batch_size": 8}
    file.write_text(json.dumps(good | mistake.config) if mistake.text is None else mistake.text)
    return file


def variables(mistake: Mistake) -> dict[str, str]:
    given = {**PLACES, **FOUR, **mistake.environment}
    return {name: value for name, value in given.items() if value is not None}


def read(file: Path, given: dict[str, str]) -> None:
    """As the program does, first of all."""
    environment = Environment.read(given)
    read_config(file, environment.world_size, environment.local_world_size)


@each
def test_a_mistake_is_told_by_itself(mistake: Mistake, tmp_path: Path) -> None:
    file = written(mistake, tmp_path)
    with pytest.raises(InputError) as caught:
        read(file, variables(mistake))
    (problem,) = caught.value.problems
    assert mistake.said in str(problem)
    assert "[" not in problem.key


def test_the_job_that_they_spoil_is_good(tmp_path: Path) -> None:
    read(written(Mistake(""), tmp_path), {**PLACES, **FOUR})


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"steps": 7}', encoding="utf-8-sig")
    assert read_config(file, 1, 1).steps == 7


@pytest.mark.parametrize("name", ["an unknown model", "a batch that does not split", "text for a world", "not JSON"])
def test_the_program_says_it_in_one_line_before_it_imports_torch(name: str, tmp_path: Path) -> None:
    file = written(MISTAKES[name], tmp_path)
    program = [sys.executable, "-X", "importtime", "-m", "trainer", "--config", str(file)]
    path = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    ended = subprocess.run(program, env=variables(MISTAKES[name]) | path, capture_output=True, text=True, timeout=60)
    (told,) = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    assert ended.returncode == 2
    assert MISTAKES[name].said in told
    assert " torch\n" not in ended.stderr


def test_several_are_told_together(tmp_path: Path) -> None:
    file = written(Mistake("", {"batch_size": 9} | split(shard=2)), tmp_path)
    with pytest.raises(InputError) as caught:
        read_config(file, 4, 2)
    assert [problem.key for problem in caught.value.problems] == ["config.parallel.shard", "config.batch_size"]
    with pytest.raises(InputError) as caught:
        Environment.read({"CHECKPOINT_URI": "/c", "RANK": "first"})
    assert [problem.key for problem in caught.value.problems] == ["DATA_URI", "RESULTS_URI", "RANK"]


def test_a_configuration_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--config = .*none.json': can't be read: No such file"):
        read_config(tmp_path / "none.json", 1, 1)


@pytest.mark.parametrize("name", ["data_uri", "checkpoint_uri", "results_uri"])
def test_a_bucket_that_is_not_there_is_told_before_the_group(name: str, alone: Environment, s3: Any) -> None:
    told = f"{name.upper()} = 's3://nowhere/x/': there is no such bucket. Make the bucket, or name another."
    change: dict[str, Any] = {name: "s3://nowhere/x/"}
    environment = replace(alone, **change)
    with pytest.raises(InputError) as caught:
        reach(name, environment)
    assert str(caught.value) == told
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("/nowhere/at/all", "DATA_URI = '/nowhere/at/all/': there is no such folder. Name one that is there."),
        ("s3:/runs/x", "DATA_URI = 's3:/runs/x/': is neither a folder nor s3://bucket/prefix/. Mend it."),
        ("s4://runs/x", "DATA_URI = 's4://runs/x/': is neither a folder nor s3://bucket/prefix/. Mend it."),
    ],
)
def test_a_place_that_is_none_is_told(uri: str, said: str, alone: Environment, s3: Any) -> None:
    with pytest.raises(InputError) as caught:
        reach("data_uri", replace(alone, data_uri=uri))
    assert str(caught.value) == said


def test_a_folder_without_a_dataset_is_told(alone: Environment, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"DATA_URI = .*holds no dataset.json. Make the dataset by python -m trainer.prepare"
    ):
        reach("data_uri", replace(alone, data_uri=str(tmp_path)))


def test_a_shard_that_its_index_belies_ends_the_job_in_one_line(job: Callable[..., Job], dataset: Path) -> None:
    spoilt = job("spoilt")
    data = spoilt.folder / "data"
    shutil.copytree(dataset, data)
    (data / "held-out.bin").write_bytes(b"x" * (data / "held-out.bin").stat().st_size)
    ended = spoilt.run(1, DATA_URI=str(data))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"{data}/held-out.bin has SHA-256 ")
    assert "Traceback" not in ended.stderr


def test_shards_without_room_for_their_tokens_are_told(alone: Environment, dataset: Path, tmp_path: Path) -> None:
    index = json.loads((dataset / INDEX).read_text())
    index["train"][1]["count"] += 1
    (tmp_path / INDEX).write_text(json.dumps(index))
    said = r"b\.bin has 20000 bytes, and 20001 tokens of uint8 are 20001 bytes"
    with pytest.raises(InputError, match=said):
        reach("data_uri", replace(alone, data_uri=str(tmp_path)))


def reach(name: str, environment: Environment) -> None:
    """As the loop does, before it meets the other ranks."""
    if name == "data_uri":
        open_data(tiny(), environment, rank=0, ranks=1).close()
    else:
        open_storage(getattr(environment, name), name.upper()).require(make=True)
