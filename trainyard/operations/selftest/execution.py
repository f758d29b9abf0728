"""Executes the steps of `trainyard selftest`.

Each step ends with `trainyard destroy`, also after a failed action or a signal, and the last with the audit of the
account.
"""

import json
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import tags
from trainyard.aws.ec2 import describe_all_instances
from trainyard.aws.reservations import find_reservations
from trainyard.config.cost import usd_per_hour
from trainyard.config.project import PROJECT_ROOT
from trainyard.models.run import LaunchResult
from trainyard.operations.cluster import Cluster
from trainyard.operations.destroy import audit
from trainyard.operations.progress import Display
from trainyard.operations.selftest.plan import Action, Step, maximum_usd
from trainyard.operations.selftest.project import ActionError, SelftestProject, progress_lines
from trainyard.operations.selftest.report import ActionResult, SelftestReport, Status
from trainyard.operations.signals import ignore_signals, sigterm_as_interrupt
from trainyard.operations.worker_groups import WorkerGroups
from trainyard.quantity import quantity

POLL_SECONDS = 10.0
# AWS's codes for a shortage (API reference, "Error codes for the Amazon EC2 API"), and the launch's own message.
NO_CAPACITY = ("no Availability Zone has capacity", "InsufficientInstanceCapacity", "UnfulfillableCapacity")


class Execution:
    """Executes the steps of a project, one after another. `write`: called with the report after each action."""

    def __init__(
        self, project: SelftestProject, steps: Sequence[Step], display: Display, write: Callable[[SelftestReport], Any]
    ) -> None:
        self.report = SelftestReport(
            stack=project.stack,
            region=project.region,
            started=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            versions=_read_versions(project),
            maximum_usd=maximum_usd(steps),
        )
        self._project, self._steps, self._display, self._write = project, steps, display, write
        self._step, self._cluster, self._run_id = steps[0], project.cluster, ""
        self._dataset: dict[str, float] = {}

    def run(self) -> None:
        """Execute the steps until one fails, then audit the account."""
        with sigterm_as_interrupt():
            for step in self._steps:
                self._step = step
                if not self._run_step():
                    break
            with ignore_signals():
                self._audit()
                self._write(self.report)

    def _audit(self) -> None:
        """List what exists of the stack. What is not retained, and a failed audit, are errors of the report."""
        report = self.report
        try:
            report.retained, report.remaining = audit(self._project.cluster, self._display, 0.0)
            report.destroyed = report.results[-1].status == "passed" and not report.remaining
        except (BotoCoreError, ClientError) as error:
            report.errors = (f"the audit of the account failed, so that resources may remain: {error}",)
        if report.remaining:
            price = usd_per_hour(self._step.settings)
            report.errors = (f"remaining resources cost at most {price:.2f} USD per hour until they are deleted",)
        passed = all(result.status == "passed" for result in report.results)
        report.ok = passed and report.destroyed and not report.interrupted

    def _run_step(self) -> bool:
        """Execute a step; return whether the next step may start: not after a failure or an interrupt."""
        self._project.write_settings(self._step.raw_settings)
        *actions, destroy = self._step.actions
        status: Status = "passed"
        try:
            for action in actions:
                if status == "passed":
                    status = self._run_action(action)
                else:
                    self._add_result(action, "not_run")
        except KeyboardInterrupt:  # between two actions
            self.report.interrupted = True
        finally:
            with ignore_signals():
                destroyed = self._run_action(destroy)
        return destroyed == "passed" and status != "failed" and not self.report.interrupted

    def _run_action(self, action: Action) -> Status:
        """Execute one action and add its result, with its error if it failed: the stack must still be destroyed."""
        subject, minutes = f"action {len(self.report.results) + 1}", self._step.minutes(action)
        text = f"{self._step.title}: {action.command} (at most {quantity(minutes, 'minute')}): {action.expectation}"
        self._display.line(subject, text)
        self._project.output, start = "", time.monotonic()
        status: Status = "passed"
        errors: list[str] = []
        facts: list[str] = []
        try:
            facts = getattr(self, action.method)(minutes)
        except KeyboardInterrupt:
            self.report.interrupted, status, errors = True, "failed", ["interrupted"]
        except ActionError as error:
            is_shortage = any(text in str(error) for text in NO_CAPACITY)
            status, errors = "no_capacity" if is_shortage else "failed", str(error).splitlines()
        except Exception as error:
            status, errors = "failed", [f"{type(error).__name__}: {error}"]
        seconds = round(time.monotonic() - start, 1)
        usd = usd_per_hour(self._step.settings) * seconds / 3600
        self.report.estimated_usd = round(self.report.estimated_usd + usd, 4)
        self._display.line(subject, f"{status} after {seconds / 60:.1f} minutes")
        progress = progress_lines(self._project.output)
        self._add_result(action, status, seconds=seconds, errors=errors, progress=progress, facts=facts)
        return status

    def _add_result(self, action: Action, status: Status, **fields: Any) -> None:
        """Add the result of an action and write the report."""
        result = ActionResult(step=self._step.title, action=action, status=status, **fields)
        self.report.results = (*self.report.results, result)
        self._write(self.report)

    def up(self, minutes: float) -> list[str]:
        """Create the stack and launch its job; return facts of the launch.

        Raises ActionError, also if a node does not have the purchase option of the settings.
        """
        self._project.run_pulumi(minutes, self._display, "up", "--yes")
        outputs = json.loads(self._project.query("stack", "output", "--json", "--stack", self._project.stack))
        # Read from the outputs: the tagging API may not list the new buckets yet.
        self._cluster = Cluster(self._project.stack, self._project.region, outputs["manifest"])
        launch = LaunchResult.model_validate_json(outputs["launch"].splitlines()[-1])
        self._run_id = launch.run
        settings = self._step.settings
        expected = ("spot" if settings.capacity.spot else "on-demand", settings.reserves_capacity(settings.groups[0]))
        phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in launch.phases.items())
        facts = [f"run {launch.run}: {phases}"]
        nodes = describe_all_instances(self._project.region, launch.nodes)
        if len(nodes) < len(launch.nodes):
            raise ActionError(f"EC2 does not describe all nodes of {', '.join(launch.nodes)}")
        for node in nodes:
            market, reservation = node.get("InstanceLifecycle", "on-demand"), node.get("CapacityReservationId")
            where = f"{node['Placement']['AvailabilityZone']}, {market}, {reservation or 'without reservation'}"
            facts.append(f"{node['InstanceId']}: {node['InstanceType']} in {where}")
            if (market, reservation is not None) != expected:
                raise ActionError(f"the node does not have the purchase option of the settings: {facts[-1]}")
        return facts

    def up_again(self, minutes: float) -> list[str]:
        """Run `pulumi up` on an unchanged stack. Pulumi exits with an error when it changes something."""
        self._project.run_pulumi(minutes, self._display, "up", "--yes", "--expect-no-changes")
        return []

    def up_with_retained_data(self, minutes: float) -> list[str]:
        """Create the stack again, with the bucket and the dataset of the destroyed one."""
        earlier, dataset = self._cluster.data.name, self._dataset
        facts = self.up(minutes)
        if (name := self._cluster.data.name) != earlier:
            raise ActionError(f"the data bucket is {name}, not the retained {earlier}")
        if changed := sorted({key for key, _ in dataset.items() ^ self._read_dataset().items()}):
            raise ActionError(f"objects of the dataset were written again: {', '.join(changed)}")
        return facts

    def _read_dataset(self) -> dict[str, float]:
        """Return the objects of the dataset -> time of their last write."""
        return {stored.key: stored.modified for stored in self._cluster.data.objects("datasets/")}

    def wait_for_end(self, minutes: float) -> list[str]:
        """Wait until the run has succeeded, its nodes are terminated and its reservations are cancelled."""
        run, deadline = self._run_id, time.monotonic() + minutes * 60
        workers, tag = WorkerGroups(self._cluster.manifest), {tags.STACK: self._cluster.stack_tag}
        while True:
            outcome, nodes = self._cluster.outcome(run), workers.members()
            reservations = [each.id for each in find_reservations(self._project.region, tag)]
            if outcome is not None and outcome.state != "succeeded":
                trace = outcome.failure.traceback if outcome.failure else ""
                raise ActionError(f"run {run} {outcome.state}: {outcome.reason}\n{trace}")
            if outcome is not None and not nodes and not reservations:
                break
            state = outcome.state if outcome else "active"
            text = f"{run}: {state}; nodes and reservations: {' '.join([*nodes, *reservations]) or 'none'}"
            if time.monotonic() > deadline:
                raise ActionError(f"after {quantity(minutes, 'minute')}: {text}")
            self._display.line("run", text)
            time.sleep(POLL_SECONDS)
        self._dataset = self._read_dataset()
        return [f"run {run} {outcome.state}: {outcome.reason}"]

    def destroy(self, minutes: float) -> list[str]:
        """Destroy the stack. Raises ActionError when something remains."""
        self._project.destroy(minutes, self._display)
        return []


def _read_versions(project: SelftestProject) -> dict[str, str]:
    """Return the versions of the Pulumi CLI, Python, the operating system, the packages and the project."""
    argv = ["git", "-C", str(PROJECT_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    is_git = shutil.which("git") is not None
    commit = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() if is_git else ""
    return {
        "commit": commit or "unknown",
        "Pulumi CLI": project.query("version").strip(),
        "Python": platform.python_version(),
        "system": platform.platform(),
        **{name: version(name) for name in ("pulumi", "pulumi-aws", "pulumi-command", "boto3")},
    }
