"""The steps of `trainyard selftest`, with their time limits and their maximum cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.cost import base_usd_per_hour, max_run_usd, usd_per_hour
from trainyard.config.loader import load_settings
from trainyard.config.project import PROJECT_ROOT
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem

# Minutes in addition to the launch: Pulumi downloads the AWS plugin (0.7 GB) and creates network and head.
CREATE_MINUTES = 20.0
# After the job's time limit: until the controller, or the lease, has terminated the workers.
END_MINUTES = 20.0
# The stop of the run waits up to 40 minutes; then Pulumi deletes the resources.
DESTROY_MINUTES = 80.0


@dataclass(frozen=True)
class Action:
    """An action of a step. `method`: name of the method of Execution that executes it."""

    command: str
    expectation: str
    method: Literal["up", "up_again", "up_with_retained_data", "wait_for_end", "destroy"]


_END = "wait for the end of the run"
_DESTROY = Action("trainyard destroy", "all resources are deleted except data bucket and key", "destroy")
_RETAINED = "bucket and key are imported, the dataset is not uploaded again"
_CPU_ACTIONS = (
    Action("pulumi up", "the job starts on all nodes", "up"),
    Action("pulumi up --expect-no-changes", "no changes", "up_again"),
    Action(_END, "the run succeeds, and no node runs", "wait_for_end"),
    _DESTROY,
    Action("pulumi up", _RETAINED, "up_with_retained_data"),
    _DESTROY,
)
_ON_DEMAND_ACTIONS = (
    Action("pulumi up", "the job starts on an instance in a capacity reservation", "up"),
    Action(_END, "the run succeeds, no node runs, and the reservation is cancelled", "wait_for_end"),
    _DESTROY,
)
_SPOT_ACTIONS = (
    Action("pulumi up", "the job starts on a Spot Instance without reservation", "up"),
    Action(_END, "the run succeeds, and no node runs", "wait_for_end"),
    _DESTROY,
)


@dataclass(frozen=True)
class Step:
    """A step of docs/first-real-run.md with one purchase option. The last action destroys the stack."""

    number: str
    title: str
    raw_settings: Mapping[str, Any]
    settings: StackSettings
    actions: tuple[Action, ...]

    def minutes(self, action: Action) -> float:
        """Return the time limit of an action, minutes."""
        if action.method == "up_again":
            return CREATE_MINUTES
        if action.method == "wait_for_end":
            return self.settings.job.time_limit_minutes + END_MINUTES
        if action.method == "destroy":
            return DESTROY_MINUTES
        wait = self.settings.capacity.wait_minutes if self.settings.reserves_any_capacity else 0.0
        return CREATE_MINUTES + wait + self.settings.launch.startup_timeout_minutes

    @property
    def maximum_usd(self) -> float:
        """Cost at list prices if each action takes its time limit, and the workers run until the job's time limit."""
        launches = sum(action.method in ("up", "up_with_retained_data") for action in self.actions)
        hours = sum(map(self.minutes, self.actions)) / 60
        return launches * max_run_usd(self.settings) + hours * base_usd_per_hour(self.settings)


def plan(number: str | None) -> list[Step]:
    """Return a step by its number, or both. Step 2 is planned on demand and on Spot. Raises InputError."""
    if number not in (None, "1", "2"):
        fix = "Use 1 or 2, or omit --step for both"
        raise InputError([Problem("--step", number, "the selftest has no such step", fix, "unknown_step")])
    train = {"steps": 100, "checkpoint": {"interval_steps": 50}, "evaluation": {"interval_steps": 50}}
    job = {"time_limit_minutes": 60, "train": train}
    gpu = {"nodes": 1, "job": job, "guardrails": {"max_cost_usd": 20}}
    steps = [
        _step("1", "on demand", _CPU_ACTIONS, "local", {}),
        _step("2", "on demand", _ON_DEMAND_ACTIONS, "spot-cluster", {**gpu, "capacity": {"wait_minutes": 10}}),
        _step("2", "Spot", _SPOT_ACTIONS, "spot-cluster", {**gpu, "capacity": {"spot": {}}}),
    ]
    return [step for step in steps if number in (None, step.number)]


def _step(number: str, option: str, actions: tuple[Action, ...], stack: str, changes: Mapping[str, Any]) -> Step:
    """Return a step with the settings of a shipped stack, with another capacity and changed values."""
    path = PROJECT_ROOT / "stacks" / f"Pulumi.{stack}.yaml"
    shipped = yaml.safe_load(path.read_text())["config"][CONFIG_KEY]
    raw = _merge({**shipped, "capacity": {}}, changes)
    settings = load_settings(raw, PROJECT_ROOT, path.name)
    title = f"step {number}, {settings.nodes} x {settings.instance_type} {option}"
    return Step(number, title, raw, settings, actions)


def _merge(section: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: _merge(section.get(key, {}), value) for key, value in changes.items() if isinstance(value, dict)}
    return {**section, **changes, **merged}


def maximum_usd(steps: Sequence[Step]) -> float:
    """Return the maximum cost of all steps, USD at list prices."""
    return round(sum(step.maximum_usd for step in steps), 2)


def format_plan(steps: Sequence[Step]) -> list[str]:
    """Return one line per step with its cost, and the maximum of all."""
    lines = [
        f"{step.title}: {usd_per_hour(step.settings):.2f} USD per hour, at most {step.maximum_usd:.2f} USD"
        for step in steps
    ]
    return [*lines, f"at most {maximum_usd(steps):.2f} USD at list prices of us-east-1"]
