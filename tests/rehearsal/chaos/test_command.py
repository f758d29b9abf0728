"""A chaos run: one undisturbed run per settings, then the run with faults."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rehearsal.chaos import command
from rehearsal.chaos.command import ChaosOptions, run_chaos
from rehearsal.display import Display
from rehearsal.interrupts import Interrupts
from rehearsal.timeline import Timeline
from rehearsal.workspace import Options
from tests.machines import ROOT
from tests.problems import rejects
from tests.rehearsal.chaos.runs import interrupted_run
from tests.rehearsal.chaos.test_report import rehearsal
from trainyard.config.project import read_project


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A project with the stack `local`."""
    shutil.copy(ROOT / "Pulumi.yaml", tmp_path)
    shutil.copytree(ROOT / "stacks", tmp_path / "stacks")
    options = Options(project=read_project(tmp_path), stack="local")
    options.folder.mkdir(parents=True)
    return options


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of the rehearsals, each of which has 20 steps in 37 s."""
    all_options: list[Options] = []

    def rehearse(options: Options, *_: Any) -> Any:
        all_options.append(options)
        return rehearsal(), Timeline(records=interrupted_run())

    monkeypatch.setattr(command, "rehearse", rehearse)
    return all_options


def chaos(seed: int = 1, minutes: float = 0.5) -> ChaosOptions:
    return ChaosOptions(seed=seed, minutes=minutes, period_seconds=15, steps=20)


def test_job_runs_without_faults_once_per_settings(options: Options, rehearsed: list[Options]) -> None:
    for seed in (1, 2):
        report = run_chaos(options, chaos(seed), Display(), Interrupts())
        assert report is not None
        assert (report.ok, report.seed) == (True, seed)
    assert [len(each.run_faults) for each in rehearsed] == [0, 2, 2]
    assert dict(rehearsed[0].changes)["job.train.steps"] == 20
    assert json.loads((options.folder / "chaos.json").read_text())["seed"] == 2


def test_custom_job_is_refused(options: Options, rehearsed: list[Options]) -> None:
    shutil.copytree(ROOT / "examples", options.project.folder / "examples")
    with rejects("custom_job", "this stack has a custom job", "Use a stack with job.train"):
        run_chaos(replace(options, stack="custom-job"), chaos(), Display(), Interrupts())
    assert rehearsed == []


def test_period_longer_than_the_run_is_refused(options: Options, rehearsed: list[Options]) -> None:
    with rejects("no_faults", "no fault is injected in 0.2 minutes", "Use 12 or less"):
        run_chaos(options, chaos(minutes=0.2), Display(), Interrupts())
    assert rehearsed == []


def test_job_must_be_longer_than_its_faults(options: Options, rehearsed: list[Options]) -> None:
    with rejects("too_few_steps", "the job takes 36 s without faults", "Use --steps 33"):
        run_chaos(options, chaos(minutes=1), Display(), Interrupts())
    assert len(rehearsed) == 1
