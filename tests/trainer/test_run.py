"""The trainer as a program: torchrun, killed and resumed, against one uninterrupted run.

On three processes: a sum of two numbers is the same in either order, one of three is not.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.polling import eventually
from tests.trainer.conftest import TINY, Job, tiny
from trainer.checkpoints.reader import read_state_dict
from trainer.models import build
from trainer.storage import open_storage
from trainyard.models.layout import COMMIT_MARK
from trainyard.models.metrics import MetricLine, Results

pytestmark = pytest.mark.slow

Jobs = Callable[..., Job]


@pytest.fixture(scope="module")
def uninterrupted(job: Jobs) -> Job:
    """Twenty steps without interruption, on three processes, with folders as storage."""
    run = job("uninterrupted")
    process = run.run(3)
    assert process.returncode == 0, process.stderr
    return run


@pytest.fixture(scope="module")
def killed(job: Jobs, s3_environment: dict[str, str]) -> Job:
    """The same job with S3, terminated by SIGKILL soon after its checkpoint at step 10, then started again."""
    places = {name: f"s3://runs/killed/{name}/" for name in ("checkpoints", "results")}
    run = job("killed", s3_environment | {"CHECKPOINT_URI": places["checkpoints"], "RESULTS_URI": places["results"]})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment.items():
            patch.setenv(name, value)
        kill_after_step(run, 10)
    process = run.run(3, TRAINYARD_ATTEMPT="2")
    assert process.returncode == 0, process.stderr
    assert "resumed from s3://runs/killed/checkpoints/step-00000010/" in process.stdout
    return run


def kill_after_step(run: Job, step: int) -> None:
    """Kill the job once the checkpoint of a step is complete.

    Rank 0 cannot continue much further: it blocks on a full pipe, in which it writes its metrics.
    """
    pipe = run.folder / "metrics/metrics.jsonl"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 8192)  # about 17 of 20 lines
    process = subprocess.Popen(run.command(3), env=run.environment, stdout=subprocess.DEVNULL)
    checkpoints = open_storage(run.environment["CHECKPOINT_URI"], "CHECKPOINT_URI")
    try:
        eventually(
            lambda: process.poll() is not None or checkpoints.exists(f"step-{step:08d}/{COMMIT_MARK}"),
            "a complete checkpoint",
            100,
        )
        assert process.poll() is None, "the job ended before it was killed"
    finally:
        agent = psutil.Process(process.pid)
        for process_ in [*agent.children(recursive=True), agent]:  # workers are in separate sessions
            process_.kill()
        process.wait(timeout=20)
        os.close(reader)
        pipe.unlink()
    assert not checkpoints.exists(f"step-{TINY['steps']:08d}/{COMMIT_MARK}")


def saved_state(job: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in job.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return read_state_dict(f"{job.environment['CHECKPOINT_URI'].rstrip('/')}/step-00000020/")


def test_ranks_agree_on_saves_after_seconds(job: Jobs) -> None:
    """The clocks of the ranks differ; a save is a collective of all ranks."""
    run = job("seconds")
    run.configure(steps=60, checkpoint={"interval_seconds": 0.1})
    process = run.run(2)
    assert process.returncode == 0, process.stderr
    saved = run.results()["checkpoints"]
    assert len(saved) > 2
    assert saved[-1].endswith("step-00000060/")
    assert "a save every " in process.stdout


def test_loss_decreases_and_each_step_has_a_line(uninterrupted: Job) -> None:
    lines = [MetricLine.model_validate(line) for line in uninterrupted.lines()]
    assert [line.step for line in lines] == list(range(1, 21))
    assert [line.step for line in lines if line.validation_loss is not None] == [10, 20]
    assert lines[-1].loss < 0.9 * lines[0].loss
    assert [line.consumed for line in lines] == [12 * step for step in range(1, 21)]


def test_results_match_the_first_and_last_metrics(uninterrupted: Job) -> None:
    lines, results = uninterrupted.lines(), Results.model_validate(uninterrupted.results())
    assert (results.first_loss, results.last_loss) == (lines[0]["loss"], lines[-1]["loss"])
    assert results.validation_loss == lines[-1]["validation_loss"]
    assert results.tokens == 20 * 12 * 32
    assert (results.world_size, results.config) == (3, tiny())
    folder = uninterrupted.folder / "checkpoints"
    assert results.checkpoints == (f"{folder}/step-00000010/", f"{folder}/step-00000020/")


def test_tensorboard_events_are_in_the_results(uninterrupted: Job) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(str(uninterrupted.folder / "results/tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 21))


def test_resume_after_sigkill_is_bitwise_exact(
    uninterrupted: Job, killed: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, resumed = saved_state(uninterrupted, monkeypatch), saved_state(killed, monkeypatch)
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        assert torch.equal(value, resumed[name]) if isinstance(value, torch.Tensor) else value == resumed[name], name
    resumed_losses = {line["step"]: line["loss"] for line in killed.lines()}
    assert resumed_losses == {line["step"]: line["loss"] for line in uninterrupted.lines() if line["step"] > 10}
    assert {line["attempt"] for line in killed.lines()} == {2}


def test_first_loss_survives_a_resume(uninterrupted: Job, killed: Job, s3: Any) -> None:
    body = s3.get_object(Bucket="runs", Key="killed/results/results.json")["Body"].read()
    results = Results.model_validate_json(body)
    assert results.first_loss == uninterrupted.results()["first_loss"]
    assert results.checkpoints == tuple(f"s3://runs/killed/checkpoints/step-000000{step}/" for step in (10, 20))


def test_check_checkpoint_loads_from_s3(killed: Job) -> None:
    uri = "s3://runs/killed/checkpoints/step-00000020/"
    process = subprocess.run(
        [sys.executable, "-m", "trainer.check_checkpoint", uri],
        env=killed.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    parameters = sum(tensor.numel() for tensor in model_tensors())
    assert json.loads(process.stdout) == {"uri": uri, "step": 20, "parameters": parameters, "loadable": True}


def model_tensors() -> list[torch.Tensor]:
    return list(build(tiny()).module.state_dict().values())


@pytest.fixture(scope="module")
def single(job: Jobs) -> Job:
    """The same job in one process, with three times the micro-batches."""
    run = job("single")
    process = run.run(1)
    assert process.returncode == 0, process.stderr
    return run


def test_three_processes_have_the_losses_of_one(uninterrupted: Job, single: Job) -> None:
    losses = [[line["loss"] for line in run.lines()] for run in (uninterrupted, single)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    norms = [[line["gradient_norm"] for line in run.lines()] for run in (uninterrupted, single)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_restart_of_a_finished_run_has_the_same_results(single: Job) -> None:
    before = single.results()
    process = single.run(1)
    assert process.returncode == 0, process.stderr
    attempt_values = {"seconds": 0, "figures": None}
    assert single.results() | attempt_values == before | attempt_values
    assert len(single.lines()) == 20


def test_sigusr1_prints_the_stacks(job: Jobs) -> None:
    run = job("stacks")
    (run.folder / "metrics").mkdir()
    os.mkfifo(run.folder / "metrics/metrics.jsonl")  # opening it blocks without a reader, which simulates a hang
    with Path(run.folder / "stderr").open("w+") as stderr:
        process = subprocess.Popen(run.command(1), env=run.environment, stderr=stderr, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not (run.folder / "results").exists():  # created before the first step
                assert time.monotonic() < deadline, "the job did not start within 60 s"
                assert process.poll() is None
                time.sleep(0.05)
            while "metrics.py" not in Path(stderr.name).read_text():
                assert time.monotonic() < deadline, "no stacks within 60 s"
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait(timeout=20)


def test_requested_checkpoint_is_saved_at_the_next_step(job: Jobs) -> None:
    run = job("requested")
    request = run.folder / "request"
    request.touch()
    assert run.run(2, CHECKPOINT_REQUEST=str(request)).returncode == 0
    saved = sorted(folder.name for folder in (run.folder / "checkpoints").iterdir())
    assert saved[0] == "step-00000001"
    assert not request.exists()
