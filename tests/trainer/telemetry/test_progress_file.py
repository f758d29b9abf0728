"""The progress file of a rank."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.settings import Environment
from trainer.telemetry.progress_file import ProgressFile
from trainyard.models.rank_progress import RankProgress, progress_file


def read(environment: Environment) -> RankProgress:
    return RankProgress.model_validate_json(progress_file(environment.metrics_dir, environment.rank).read_text())


def test_file_is_replaced_once_per_second(alone: Environment) -> None:
    now = [50.0]
    environment = replace(alone, rank=3)
    file = ProgressFile(environment, lambda: now[0])
    file.write(1, 0.4, 0.3)
    now[0] += 0.9
    file.write(2, 0.4, 0.3)
    assert read(environment).step == 1
    now[0] += 0.1
    file.write(3, 0.5, None)
    written = read(environment)
    assert (written.rank, written.step, written.step_seconds, written.busy_seconds) == (3, 3, 0.5, None)
    assert [path.name for path in environment.metrics_dir.iterdir()] == ["progress-3.json"]


def test_full_disk_does_not_end_the_job(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    now = [50.0]
    file = ProgressFile(alone, lambda: now[0])
    monkeypatch.setattr(Path, "write_text", fail)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            now[0] += 2
            file.write(step, 0.4, 0.3)
    assert caplog.text.count("progress of rank 0 not written") == 1
