"""The runs and steps of `trainyard selftest`, with their time limits and their maximum cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.cost import base_usd_per_hour, max_run_usd, usd_per_hour
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.operations.stack_file import PROJECT_ROOT, stack_file_path

# Methods of Selftest.
Action = Literal["up", "up_again", "up_with_retained_data", "wait_for_end", "check_market", "destroy"]
# Minutes in addition to the launch: Pulumi downloads the AWS plugin (0.7 GB) and creates network and head.
CREATE_MINUTES = 20.0
NO_CHANGE_MINUTES = 20.0
# After the job's time limit: the controller terminates the workers, or the lease does.
END_MINUTES = 20.0
# The stop of the run waits up to 40 minutes; then Pulumi deletes the resources.
DESTROY_MINUTES = 80.0
EXPECTED_MINUTES = {"1": 30.0, "2": 30.0}


class Runs(StrEnum):
    """The runs of the page to execute."""

    FIRST = "1"
    SECOND = "2"
    ALL = "all"


def select_runs(value: str) -> Runs:
    """Return the runs that `--run` names. Raises InputError for any other value."""
    if value in set(Runs):
        return Runs(value)
    fix = f"Use one of {', '.join(Runs)}; make the other runs of docs/first-real-run.md by hand"
    raise InputError([Problem("--run", value, "no run of the selftest", fix, "unknown_selftest_run")])


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step of a run. `minutes`: its time limit."""

    command: str
    expectation: str
    proves: str
    minutes: float
    action: Action

    def texts(self, run: str) -> dict[str, str]:
        """Return the texts of the report's step."""
        return {"run": run, "command": self.command, "expectation": self.expectation, "proves": self.proves}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run, or one purchase option of it: settings of the stack and steps. The last step destroys the stack."""

    run: str
    title: str
    raw_settings: Mapping[str, Any]
    settings: StackSettings
    steps: tuple[PlannedStep, ...]

    @property
    def launches(self) -> int:
        """How many steps may launch workers."""
        return sum(step.action in ("up", "up_with_retained_data") for step in self.steps)

    @property
    def expected_usd(self) -> float:
        """Cost at list prices when all workers run for the expected time."""
        return usd_per_hour(self.settings) * EXPECTED_MINUTES[self.run] / 60

    @property
    def maximum_usd(self) -> float:
        """Cost at list prices when each step takes its time limit: the job's limits the workers."""
        hours = sum(step.minutes for step in self.steps) / 60
        return self.launches * max_run_usd(self.settings) + base_usd_per_hour(self.settings) * hours


def plan(runs: Runs) -> list[Part]:
    """Return the parts of the selected runs. Raises InputError when a shipped stack file is not valid."""
    parts = []
    if runs in (Runs.FIRST, Runs.ALL):
        parts.append(_cpu_part())
    if runs in (Runs.SECOND, Runs.ALL):
        parts += [_gpu_part(spot=False), _gpu_part(spot=True)]
    return parts


def _load(stack: str, changes: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[dict[str, Any], StackSettings]:
    """Return the settings of a shipped stack with changed values, as in its file and validated."""
    path = stack_file_path(stack)
    raw: dict[str, Any] = yaml.safe_load(path.read_text())["config"][CONFIG_KEY]
    raw |= changes
    raw["job"]["train"] |= job.get("train", {})
    raw["job"] |= {key: value for key, value in job.items() if key != "train"}
    return raw, load_settings(raw, PROJECT_ROOT, path.name)


def _launch_minutes(settings: StackSettings) -> float:
    wait = settings.capacity.wait_minutes if settings.reserves_any_capacity else 0.0
    return CREATE_MINUTES + wait + settings.launch.startup_timeout_minutes


def _end_step(settings: StackSettings, expectation: str, proves: str) -> PlannedStep:
    return PlannedStep(
        command="wait for the end of the run",
        expectation=expectation,
        proves=proves,
        minutes=settings.job.time_limit_minutes + END_MINUTES,
        action="wait_for_end",
    )


def _destroy_step(proves: str) -> PlannedStep:
    return PlannedStep(
        command="trainyard destroy",
        expectation="all resources are deleted except data bucket and key",
        proves=proves,
        minutes=DESTROY_MINUTES,
        action="destroy",
    )


def _cpu_part() -> Part:
    raw, settings = _load("local", {}, {})
    minutes = _launch_minutes(settings)
    steps = (
        PlannedStep(
            command="pulumi up",
            expectation="the job starts on all nodes",
            proves="IAM policies, endpoints, user data, node playbook, LaunchInstances, lease, lifecycle hooks",
            minutes=minutes,
            action="up",
        ),
        PlannedStep(
            command="pulumi up --expect-no-changes",
            expectation="no changes",
            proves="what the AWS provider reads back equals what the program sends",
            minutes=NO_CHANGE_MINUTES,
            action="up_again",
        ),
        _end_step(settings, "the run succeeds, and no node runs", "trainer, checkpoints in S3, controller"),
        _destroy_step("the order of deletions"),
        PlannedStep(
            command="pulumi up",
            expectation="bucket and key are imported, the dataset is not uploaded again",
            proves="the adoption of retained resources",
            minutes=minutes,
            action="up_with_retained_data",
        ),
        _destroy_step("the stop soon after a launch"),
    )
    title = f"{settings.nodes} x {settings.instance_type}"
    return Part(run="1", title=title, raw_settings=raw, settings=settings, steps=steps)


def _gpu_part(spot: bool) -> Part:
    capacity: dict[str, Any] = {"spot": {}} if spot else {"wait_minutes": 10}
    changes = {"nodes": 1, "capacity": capacity, "guardrails": {"max_cost_usd": 20, "idle_timeout_minutes": 30}}
    train = {"steps": 100, "checkpoint": {"interval_steps": 50}, "evaluation": {"interval_steps": 50}}
    raw, settings = _load("spot-cluster", changes, {"time_limit_minutes": 60, "train": train})
    option = "Spot" if spot else "on demand"
    launch_step = PlannedStep(
        command=f"pulumi up ({option})",
        expectation=(
            "no reservation; the Spot request is fulfilled or its error code is reported"
            if spot
            else "a capacity reservation, then all nodes are healthy"
        ),
        proves=(
            "LaunchInstances on Spot"
            if spot
            else "driver, CUDA, EFA installer and NCCL on a GPU node, LaunchInstances into a targeted reservation"
        ),
        minutes=_launch_minutes(settings),
        action="up",
    )
    usage_step = PlannedStep(
        command="read the market of the instance" if spot else "read the capacity reservation",
        expectation="a Spot Instance without reservation" if spot else "the instance uses the reservation",
        proves="the purchase option of the instance",
        minutes=1,
        action="check_market",
    )
    end = "the run succeeds, and no node runs" + ("" if spot else "; the reservation is cancelled")
    steps = (
        launch_step,
        usage_step,
        _end_step(settings, end, "training on the GPUs" + ("" if spot else ", the end of the reservation")),
        _destroy_step(f"the end of a stack with GPU nodes, {option}"),
    )
    title = f"{settings.nodes} x {settings.instance_type}, {option}"
    return Part(run="2", title=title, raw_settings=raw, settings=settings, steps=steps)


def maximum_usd(parts: list[Part]) -> float:
    """Return the maximum cost of all parts, USD at list prices."""
    return round(sum(part.maximum_usd for part in parts), 2)


def format_plan(parts: list[Part]) -> list[str]:
    """Return one line per part with its cost, and the maximum of all."""
    lines = [
        f"run {part.run}: {part.title}: {usd_per_hour(part.settings):.2f} USD per hour, some "
        f"{EXPECTED_MINUTES[part.run]:g} minutes, some {part.expected_usd:.2f} USD, at most {part.maximum_usd:.2f} USD"
        for part in parts
    ]
    return [*lines, f"at most {maximum_usd(parts):.2f} USD at list prices of us-east-1"]
