"""The trainer as a program: torchrun, killed and resumed, against one unbroken run.

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
from trainer.checkpoints.reader import load_whole
from trainer.models import build
from trainer.schedule import learning_rate
from trainer.storage import open_storage
from trainyard.models.layout import COMMIT_MARK
from trainyard.models.metrics import MetricLine, Results

Jobs = Callable[..., Job]


@pytest.fixture(scope="module")
def straight(job: Jobs) -> Job:
    """Twenty steps without a break, on three processes, into folders."""
    found = job("straight")
    ended = found.run(3)
    assert ended.returncode == 0, ended.stderr
    return found


@pytest.fixture(scope="module")
def broken(job: Jobs, s3_environment: dict[str, str]) -> Job:
    """The same job with S3, killed with SIGKILL soon after its checkpoint at step 10, then started again."""
    places = {name: f"s3://runs/broken/{name}/" for name in ("checkpoints", "results")}
    found = job("broken", s3_environment | {"CHECKPOINT_URI": places["checkpoints"], "RESULTS_URI": places["results"]})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment.items():
            patch.setenv(name, value)
        kill_after_step(found, 10)
    ended = found.run(3, TRAINYARD_ATTEMPT="2")
    assert ended.returncode == 0, ended.stderr
    assert "resumed from s3://runs/broken/checkpoints/step-00000010/" in ended.stdout
    return found


def kill_after_step(found: Job, step: int) -> None:
    """Once its checkpoint is complete. Rank 0 can't outrun the test: nobody reads the pipe that it fills with lines."""
    pipe = found.folder / "metrics/metrics.jsonl"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 8192)  # of 20 lines, it takes some 17
    process = subprocess.Popen(found.command(3), env=found.environment, stdout=subprocess.DEVNULL)
    checkpoints = open_storage(found.environment["CHECKPOINT_URI"], "CHECKPOINT_URI")
    try:
        eventually(
            lambda: process.poll() is not None or checkpoints.exists(f"step-{step:08d}/{COMMIT_MARK}"), "it", 100
        )
        assert process.poll() is None, "the job ended before it was killed"
    finally:
        agent = psutil.Process(process.pid)
        for each in [*agent.children(recursive=True), agent]:  # workers are in sessions of their own
            each.kill()
        process.wait(timeout=20)
        os.close(reader)
        pipe.unlink()
    assert not checkpoints.exists(f"step-{TINY['steps']:08d}/{COMMIT_MARK}")


def kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in job.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return load_whole(f"{job.environment['CHECKPOINT_URI'].rstrip('/')}/step-00000020/")


def test_loss_falls_and_each_step_has_a_line(straight: Job) -> None:
    lines = [MetricLine.model_validate(line) for line in straight.lines()]
    assert [line.step for line in lines] == list(range(1, 21))
    assert [line.step for line in lines if line.validation_loss is not None] == [10, 20]
    assert lines[-1].loss < 0.9 * lines[0].loss
    assert [line.consumed for line in lines] == [12 * step for step in range(1, 21)]


def test_results_repeat_first_and_last_line(straight: Job) -> None:
    lines, results = straight.lines(), Results.model_validate(straight.results())
    assert (results.first_loss, results.last_loss) == (lines[0]["loss"], lines[-1]["loss"])
    assert results.validation_loss == lines[-1]["validation_loss"]
    assert results.tokens == 20 * 12 * 32
    assert (results.world_size, results.config) == (3, tiny())
    at = straight.folder / "checkpoints"
    assert results.checkpoints == (f"{at}/step-00000010/", f"{at}/step-00000020/")


def test_tensorboard_events_lie_with_the_results(straight: Job) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    read = EventAccumulator(str(straight.folder / "results/tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("loss")] == list(range(1, 21))


def test_resume_after_sigkill_is_exact_to_the_last_bit(
    straight: Job, broken: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, found = kept(straight, monkeypatch), kept(broken, monkeypatch)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name], name
    again = {line["step"]: line["loss"] for line in broken.lines()}
    assert again == {line["step"]: line["loss"] for line in straight.lines() if line["step"] > 10}
    assert {line["attempt"] for line in broken.lines()} == {2}


def test_first_loss_survives_a_resume(straight: Job, broken: Job, s3: Any) -> None:
    body = s3.get_object(Bucket="runs", Key="broken/results/results.json")["Body"].read()
    results = Results.model_validate_json(body)
    assert results.first_loss == straight.results()["first_loss"]
    assert results.checkpoints == tuple(f"s3://runs/broken/checkpoints/step-000000{step}/" for step in (10, 20))


def test_check_loads_a_checkpoint_from_s3_in_a_process_of_its_own(broken: Job) -> None:
    uri = "s3://runs/broken/checkpoints/step-00000020/"
    ended = subprocess.run(
        [sys.executable, "-m", "trainer.check", uri], env=broken.environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    parameters = sum(tensor.numel() for tensor in model_tensors())
    assert json.loads(ended.stdout) == {"uri": uri, "step": 20, "parameters": parameters, "loadable": True}


def model_tensors() -> list[torch.Tensor]:
    return list(build(tiny()).module.state_dict().values())


@pytest.fixture(scope="module")
def single(job: Jobs) -> Job:
    """The same job as `python -m trainer`, one process on three times the micro-batches."""
    found = job("single")
    ended = found.run(1)
    assert ended.returncode == 0, ended.stderr
    return found


def test_three_processes_are_as_one(straight: Job, single: Job) -> None:
    losses = [[line["loss"] for line in run.lines()] for run in (straight, single)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    norms = [[line["gradient_norm"] for line in run.lines()] for run in (straight, single)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_a_finished_run_started_again_says_the_same(single: Job) -> None:
    before = single.results()
    ended = single.run(1)
    assert ended.returncode == 0, ended.stderr
    of_the_attempt = {"seconds": 0, "figures": None}
    assert single.results() | of_the_attempt == before | of_the_attempt
    assert len(single.lines()) == 20


def test_sigusr1_shows_the_stacks(job: Jobs) -> None:
    found = job("asked")
    (found.folder / "metrics").mkdir()
    os.mkfifo(found.folder / "metrics/metrics.jsonl")  # opening it waits for a reader, as a hung job waits
    with Path(found.folder / "stderr").open("w+") as stderr:
        process = subprocess.Popen(found.command(1), env=found.environment, stderr=stderr, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not (found.folder / "results").exists():  # made before the first step
                assert time.monotonic() < deadline, "the job did not begin within 60 s"
                assert process.poll() is None
                time.sleep(0.05)
            while "metrics.py" not in Path(stderr.name).read_text():
                assert time.monotonic() < deadline, "no stacks within 60 s"
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait(timeout=20)


def test_schedule_peaks_after_warm_up_and_ends_at_the_minimum() -> None:
    optimizer = tiny().optimizer
    rates = [learning_rate(step, 20, optimizer) for step in range(1, 21)]
    assert max(rates) == rates[3] == optimizer.learning_rate
    assert rates[-1] == pytest.approx(optimizer.min_learning_rate)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_a_checkpoint_is_saved_at_the_step_at_which_it_is_asked_for(job: Jobs) -> None:
    found = job("asked")
    request = found.folder / "request"
    request.touch()
    assert found.run(2, CHECKPOINT_REQUEST=str(request)).returncode == 0
    saved = sorted(folder.name for folder in (found.folder / "checkpoints").iterdir())
    assert saved[0] == "step-00000001"
    assert not request.exists()
