"""The command `python -m trainer plan`."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import ROOT
from tests.trainer.plan.budgets import BUDGETS, JOBS, budget
from trainer.plan.candidates import smaller_configurations
from trainer.plan.command import PlannedJob, fits, plan_job, read_job
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig
from trainyard.errors import InputError, Problem


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer", "plan", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    settings = {"model": {"dim": 64, "layers": 2}, "batch_size": 64, "micro_batch_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return tmp_path / "config.json"


def test_table_has_memory_and_collectives(file: Path) -> None:
    process = run(str(file), "--ranks", "4", "--no-compile")
    assert process.returncode == 0, process.stderr
    for text in ("parameters", "optimizer", "all_reduce (replicate)", "1 micro-batches per step"):
        assert text in process.stdout


def test_a_job_that_does_not_fit_is_refused_with_a_change_that_does(file: Path) -> None:
    process = run(str(file), "--ranks", "4", "--gpu-memory-gib", "0.02", "--json", "--no-compile")
    assert process.returncode == 2
    assert json.loads(process.stdout)["fits"] is False
    *_, message = process.stderr.splitlines()
    assert "micro_batch_size 16 -> " in message
    assert "GiB" in message


def test_a_state_that_does_not_fit_is_refused_with_the_number_of_ranks(file: Path) -> None:
    """The decoder has 205,120 parameters, which are 3.3 MB of state. A GPU has 0.77 MB for tensors."""
    process = run(str(file), "--ranks", "2", "--gpu-memory-gib", "0.0008", "--no-compile")
    assert process.returncode == 2
    (message,) = process.stderr.splitlines()
    assert "Use at least 5 ranks" in message


def test_unknown_key_is_refused(file: Path) -> None:
    file.write_text('{"step": 3}')
    process = run(str(file), "--ranks", "4")
    assert (process.returncode, process.stdout) == (2, "")
    assert "step" in process.stderr


def test_a_stack_with_a_job_of_the_user_is_refused() -> None:
    process = run("stacks/Pulumi.custom-job.yaml")
    assert process.returncode == 2
    assert "job.train" in process.stderr


def test_a_stack_with_a_model_of_unknown_shape_is_refused(stack_of_model: Path) -> None:
    process = run(str(stack_of_model))
    assert (process.returncode, process.stdout) == (2, "")
    assert "$MODEL_PATH" in process.stderr
    assert "its shape is not known here" in process.stderr


def test_a_stack_has_the_shape_of_the_model_in_a_folder(
    stack_of_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": "llama", **shape, "intermediate_size": 96, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("MODEL_PATH", str(tmp_path))
    model = read_job(stack_of_model).config.model
    assert isinstance(model, DecoderConfig)
    assert (model.dim, model.layers, model.has_shape) == (64, 3, True)


@pytest.fixture
def stack_of_model(tmp_path: Path) -> Path:
    """A stack that fine-tunes a model of job.model, without its preset."""
    (tmp_path / "stacks").mkdir()
    for name in ("Pulumi.yaml", "infra"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "stacks/Pulumi.finetune.yaml").read_text()
    file = tmp_path / "stacks/Pulumi.finetune.yaml"
    file.write_text(re.sub(r"preset: \w+,? ?", "", text))
    assert file.read_text() != text
    return file


def test_changes_are_cumulative_and_the_cheapest_first() -> None:
    config = TrainerConfig.model_validate({"batch_size": 64, "micro_batch_size": 4, "model": {"kv_heads": 4}})
    candidates = list(smaller_configurations(config, 8, 8))
    first, *_, last = (changes for _, changes in candidates)
    assert first == ["parallel.data ddp -> fsdp"]
    assert last == [
        "parallel.data ddp -> fsdp",
        "micro_batch_size 4 -> 1",
        "memory.activation_checkpointing none -> full",
        "parallel.tensor 1 -> 4",
        "parallel.context 1 -> 2",
    ]
    assert all(not config.problems(8, 8) for config, _ in candidates)


@pytest.mark.slow  # 15 to 60 s each
@pytest.mark.parametrize("name", JOBS)
def test_plan_needs_no_more_than_its_budget(name: str) -> None:
    plans = plan_job(JOBS[name])
    assert fits(JOBS[name], plans)
    actual, limit = budget(plans[0]), BUDGETS[name]
    exceeded = {key: size for key, size in actual["memory"].items() if size > limit["memory"][key] + 0.05}
    assert exceeded == {}
    collectives, allowed = (
        {key: (ranks, count, pytest.approx(gib, abs=0.05)) for key, (ranks, count, gib) in each["collectives"].items()}
        for each in (actual, limit)
    )
    assert collectives == allowed


def test_each_preset_and_gpu_stack_has_a_budget() -> None:
    assert BUDGETS.keys() == JOBS.keys()


def test_documentation_has_the_plans() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text()
    for name, each in BUDGETS.items():
        collectives = each["collectives"].values()
        count, size = sum(number for _, number, _ in collectives), sum(gib for *_, gib in collectives)
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        numbers = [float(text) for text in re.findall(r"(?<=\| )[\d.]+(?= \|)", row.replace(",", ""))]
        expected = [*(each["memory"][key] for key in ("peak", "gradients", "activations")), count, size]
        assert [value for value in expected if not any(abs(number - value) < 0.11 for number in numbers)] == [], row


@pytest.mark.slow
def test_70b_does_not_fit_8_gpus_of_141_gb() -> None:
    """16 bytes for each of 70.6 billion parameters are 1,129 GB."""
    settings = {"model": {"preset": "70b"}, "batch_size": 8, "micro_batch_size": 1, "parallel": {"tensor": 8}}
    config = TrainerConfig.model_validate({**settings, "memory": {"activation_checkpointing": "full"}})
    job = PlannedJob(config=config, ranks=8, per_node=8, gpu_gib=141.0, compiled=True)
    assert not fits(job, plan_job(job))


def test_errors_of_other_processes_keep_their_problems() -> None:
    error = InputError([Problem("config.model", 3, "is invalid", "Correct it", "invalid")])
    copy: InputError = pickle.loads(pickle.dumps(error))
    assert (copy.problems, str(copy)) == (error.problems, str(error))
