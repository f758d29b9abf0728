"""The first two runs of docs/first-real-run.md against a real AWS account: `trainyard selftest`.

Its Pulumi stack, state and stack file are separate from the user's. Each run ends with `trainyard destroy`, also after
a failed step or a signal, and the selftest with the audit of the account.
"""

import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.clients import client
from trainyard.config import CONFIG_KEY
from trainyard.config.cost import base_usd_per_hour, usd_per_hour
from trainyard.errors import InputError, Problem
from trainyard.operations.cluster import Cluster
from trainyard.operations.destroy import audit, require_pulumi
from trainyard.operations.progress import Display
from trainyard.operations.selftest_facts import (
    describe_leftovers,
    private_texts,
    read_launch,
    read_reservations,
    read_versions,
)
from trainyard.operations.selftest_plan import (
    CREATE_MINUTES,
    DESTROY_MINUTES,
    Part,
    PlannedStep,
    Runs,
    format_plan,
    maximum_usd,
    plan,
)
from trainyard.operations.selftest_project import SelftestProject, StepError, progress_lines
from trainyard.operations.selftest_report import (
    LaunchFacts,
    Leftover,
    Redactor,
    SelftestReport,
    Status,
    Step,
    write_report,
)
from trainyard.operations.signals import ignore_signals, sigterm_as_interrupt
from trainyard.operations.worker_groups import WorkerGroups

DEFAULT_FOLDER = Path.home() / ".trainyard" / "selftest"
POLL_SECONDS = 10.0
# AWS's codes for a shortage (API reference, "Error codes for the Amazon EC2 API"), and the launch's own message.
NO_CAPACITY = ("no Availability Zone has capacity", "InsufficientInstanceCapacity", "UnfulfillableCapacity")


@dataclass(frozen=True, kw_only=True)
class SelftestOptions:
    """Options of `trainyard selftest`. `folder`: folder of the stack's folders; `report`: the JSON file."""

    runs: Runs
    region: str
    folder: Path
    report: Path


@dataclass(frozen=True)
class StepResult:
    """What a step that passed contributes to the report."""

    launch: LaunchFacts | None = None
    progress: tuple[str, ...] = ()


class Selftest:
    """Executes parts, one after another, and records their steps. `versions`: for the report."""

    def __init__(
        self, project: SelftestProject, parts: list[Part], display: Display, versions: Mapping[str, str]
    ) -> None:
        self.project, self.display = project, display
        self.cluster = Cluster(project.stack, project.region)
        self.steps: list[Step] = []
        self.leftovers: tuple[Leftover, ...] = ()
        self.errors: list[str] = []
        self.is_interrupted = False
        self._parts, self._versions = parts, dict(versions)
        self._started = datetime.now(UTC)
        self._settings = parts[0].settings
        self._launch: LaunchFacts | None = None
        self._dataset: dict[str, float] = {}
        self._usd = 0.0
        self._cluster_start: float | None = None
        self._workers_start: float | None = None

    def preview(self) -> None:
        """Preview all parts before any of them costs anything. Raises StepError, for example without a quota."""
        for part in self._parts:
            self.display.line(f"run {part.run}", f"pulumi preview (at most {CREATE_MINUTES:g} minutes): {part.title}")
            self.project.write_settings({CONFIG_KEY: part.raw_settings})
            self.project.run(self.project.pulumi("preview"), CREATE_MINUTES, self.display)

    def run(self, on_step: Callable[[], object]) -> None:
        """Execute the parts until one fails, then audit the account. `on_step` is called after each step."""
        with sigterm_as_interrupt():
            for part in self._parts:
                if not self._run_part(part, on_step):
                    break
            with ignore_signals():
                self._audit()
                on_step()

    def _run_part(self, part: Part, on_step: Callable[[], object]) -> bool:
        """Execute a part; return whether the next one may start: after success, and without capacity."""
        self._settings = part.settings
        status: Status = "passed"
        self.project.write_settings({CONFIG_KEY: part.raw_settings})
        *steps, destroy_step = part.steps
        try:
            for step in steps:
                skipped = Step(**step.texts(part.run), status="not_run")
                result = self._execute(part, step) if status == "passed" else skipped
                status = result.status if status == "passed" else status
                self.steps.append(result)
                on_step()
        except KeyboardInterrupt:  # between two steps
            self.is_interrupted = True
        finally:
            with ignore_signals():
                self.steps.append(destroyed := self._execute(part, destroy_step))
                on_step()
        return destroyed.status == "passed" and status != "failed" and not self.is_interrupted

    def _execute(self, part: Part, step: PlannedStep) -> Step:
        """Execute one step and return its record."""
        subject = f"run {part.run}, step {len(self.steps) + 1}"
        self.display.line(subject, f"{step.command} (at most {step.minutes:g} minutes): {step.expectation}")
        start, result = time.monotonic(), StepResult()
        status: Status = "passed"
        errors: tuple[str, ...] = ()
        try:
            result = getattr(self, step.action)(step.minutes)
        except KeyboardInterrupt:
            self.is_interrupted, errors, status = True, ("interrupted",), "failed"
        except StepError as error:
            errors, result = error.lines, StepResult(progress=error.progress)
            status = _failure_status(error)
        except Exception as error:  # the stack must be destroyed, and the report contains the error
            errors, status = (f"{type(error).__name__}: {error}",), "failed"
        if status == "no_capacity":
            self._workers_start = None
        seconds = time.monotonic() - start
        self.display.line(subject, f"{status} after {seconds / 60:.1f} minutes")
        return Step(
            **step.texts(part.run),
            status=status,
            seconds=round(seconds, 1),
            errors=errors,
            progress=result.progress,
            launch=result.launch,
        )

    def up(self, minutes: float) -> StepResult:
        """Create the stack and launch its job."""
        self._workers_start = time.time()
        self._cluster_start = self._cluster_start or self._workers_start
        output = self.project.run(self.project.pulumi("up", "--yes"), minutes, self.display)
        outputs = self.project.outputs()
        # AWS's index of tags may not contain the new buckets yet.
        self.cluster = Cluster(self.project.stack, self.project.region, outputs["manifest"])
        self._launch = read_launch(self.cluster, outputs["launch"])
        return StepResult(self._launch, tuple(progress_lines(output)))

    def up_again(self, minutes: float) -> StepResult:
        """Run `pulumi up` on an unchanged stack. Pulumi exits with an error when it changes something."""
        self.project.run(self.project.pulumi("up", "--yes", "--expect-no-changes"), minutes, self.display)
        return StepResult()

    def up_with_retained_data(self, minutes: float) -> StepResult:
        """Create the stack again, with the bucket and the dataset of the destroyed one."""
        earlier, dataset = self.cluster.data.name, self._dataset
        result = self.up(minutes)
        if (name := self.cluster.data.name) != earlier:
            raise StepError([f"the data bucket is {name}, not the retained {earlier}"], result.progress)
        if changed := sorted({key for key, _ in dataset.items() ^ self._read_dataset().items()}):
            raise StepError([f"objects of the dataset were written again: {', '.join(changed)}"], result.progress)
        return result

    def _read_dataset(self) -> dict[str, float]:
        """Return the objects of the dataset -> time of their last write."""
        return {stored.key: stored.modified for stored in self.cluster.data.objects("datasets/")}

    def wait_for_end(self, minutes: float) -> StepResult:
        """Wait until the run has succeeded, its nodes are terminated and its reservations are cancelled."""
        assert self._launch is not None
        run, deadline = self._launch.run, time.monotonic() + minutes * 60
        workers = WorkerGroups(self.cluster.manifest)
        names = [reservation.id for reservation in self._launch.reservations]
        while True:
            outcome, nodes = self.cluster.outcome(run), workers.members()
            active = [each.id for each in read_reservations(self.project.region, names) if each.state == "active"]
            if outcome is not None and outcome.state != "succeeded":
                trace = outcome.failure.traceback.splitlines() if outcome.failure else []
                raise StepError([f"run {run} {outcome.state}: {outcome.reason}", *trace])
            if outcome is not None and not nodes and not active:
                break
            text = f"{outcome.state if outcome else 'active'}; nodes: {' '.join(nodes) or 'none'}"
            waits = f"{run} is {text}; reservations: {' '.join(active) or 'none'}"
            if time.monotonic() > deadline:
                raise StepError([f"after {minutes:g} minutes {waits}"])
            self.display.line("run", waits)
            time.sleep(POLL_SECONDS)
        self._end_workers(outcome.ended_at)
        self._dataset = self._read_dataset()
        return StepResult()

    def check_market(self, minutes: float) -> StepResult:
        """Check that nodes use the reservation, or that they are Spot Instances without reservation."""
        assert self._launch is not None
        launch = self._launch
        if self._settings.capacity.spot:
            if launch.reservations or any(node.market != "spot" for node in launch.nodes):
                raise StepError([f"not a Spot Instance without reservation: {launch.model_dump_json()}"])
        elif not launch.reservations:
            raise StepError(["the launch made no capacity reservation"])
        else:
            # As the launch returned: a short job may have ended since.
            used = sum(reservation.instances - reservation.available for reservation in launch.reservations)
            if used < len(launch.nodes):
                raise StepError([f"{used} of {len(launch.nodes)} nodes use it: {launch.model_dump_json()}"])
        return StepResult()

    def destroy(self, minutes: float) -> StepResult:
        """Destroy the stack. Raises StepError when something remains."""
        project = self.project
        try:
            destroy_stack(project, minutes, self.display)
        finally:
            now = time.time()
            self._end_workers(now)
            if self._cluster_start is not None:
                self._usd += base_usd_per_hour(self._settings) * (now - self._cluster_start) / 3600
                self._cluster_start = None
        return StepResult()

    def _end_workers(self, end: float) -> None:
        """Add the cost of the workers from the start of the launch: more than AWS bills."""
        if self._workers_start is not None:
            price = usd_per_hour(self._settings) - base_usd_per_hour(self._settings)
            self._usd += price * max(end - self._workers_start, 0.0) / 3600
            self._workers_start = None

    def _audit(self) -> None:
        try:
            self.leftovers = list_leftovers(self.project, self.display)
        except (BotoCoreError, ClientError) as error:
            self.errors.append(f"the audit of the account failed, so that resources may remain: {error}")

    def report(self) -> SelftestReport:
        """Return the report, not redacted."""
        complete = not self.errors and not any(not each.retained for each in self.leftovers)
        passed = bool(self.steps) and all(step.status == "passed" for step in self.steps)
        return SelftestReport(
            ok=passed and complete and not self.is_interrupted,
            interrupted=self.is_interrupted,
            stack=self.project.stack,
            region=self.project.region,
            started=f"{self._started:%Y-%m-%d %H:%M:%S} UTC",
            versions=self._versions,
            steps=tuple(self.steps),
            leftovers=self.leftovers,
            errors=tuple(self.errors),
            estimated_usd=round(self._usd, 2),
            maximum_usd=maximum_usd(self._parts),
        )


def _failure_status(error: StepError) -> Status:
    return "no_capacity" if any(text in str(error) for text in NO_CAPACITY) else "failed"


def destroy_stack(project: SelftestProject, minutes: float, display: Display) -> None:
    """Run `trainyard destroy`. Raises StepError when it fails or something remains."""
    project.unlock()
    command = [sys.executable, "-m", "trainyard", "destroy", "--stack", project.stack, "--yes"]
    project.run([*command, "--cwd", str(project.folder)], minutes, display)


def list_leftovers(project: SelftestProject, display: Display) -> tuple[Leftover, ...]:
    """Return the resources of the stack that exist."""
    retained, remaining = audit(Cluster(project.stack, project.region), display, 0.0)
    command = f"trainyard selftest --destroy --folder {project.folder.parent}"
    return describe_leftovers(project.region, retained, remaining, command)


def selftest(options: SelftestOptions, display: Display, confirm: Callable[[str], None]) -> SelftestReport:
    """Execute the selected runs, destroy the stack, and return the redacted report, which is also written.

    `confirm` receives account, region and maximum cost, and raises to refuse them. Raises InputError without the
    Pulumi CLI or for a report file in a missing folder, StepError when a preview fails.
    """
    require_pulumi()
    if not options.report.absolute().parent.is_dir() or options.report.suffix == ".md":
        reason, fix = "its folder does not exist, or it ends in .md", "Name a JSON file in an existing folder"
        raise InputError([Problem("--report", str(options.report), reason, fix, "report_not_writable")])
    parts = plan(options.runs)
    identity = client("sts", options.region).get_caller_identity()
    for stack in sorted(existing_folders(options.folder)):
        display.line("selftest", f"an earlier selftest left {stack.name}: trainyard selftest --destroy")
    for line in format_plan(parts):
        display.line("cost", line)
    confirm(f"Run it in account {identity['Account']}, {options.region}, for at most {maximum_usd(parts):.2f} USD?")
    project = SelftestProject(options.folder / f"selftest-{secrets.token_hex(2)}", options.region)
    redactor = Redactor(private_texts(identity))
    try:
        project.create()
        test = Selftest(project, parts, display, read_versions(project.query("version")))
        test.preview()
    except BaseException:  # the stack has no resources yet
        project.delete()
        raise
    test.run(lambda: _write(test, options.report, redactor))
    report = _write(test, options.report, redactor)
    is_destroyed = report.steps[-1].status == "passed" and not test.errors
    _delete_if_destroyed(project, is_destroyed, test.leftovers, display)
    return report


def _write(test: Selftest, file: Path, redactor: Redactor) -> SelftestReport:
    return write_report(test.report(), file, redactor)


def existing_folders(folder: Path) -> list[Path]:
    """Return the folders of stacks that an earlier selftest did not destroy."""
    return [path.parent for path in folder.glob("selftest-*/Pulumi.yaml")]


def destroy_existing_stacks(folder: Path, display: Display) -> tuple[Leftover, ...]:
    """Destroy the stacks that earlier selftests left; return what exists. Raises StepError when one fails."""
    require_pulumi()
    leftovers: list[Leftover] = []
    for path in existing_folders(folder):
        project = SelftestProject.load(path)
        destroy_stack(project, DESTROY_MINUTES, display)
        existing = list_leftovers(project, display)
        _delete_if_destroyed(project, True, existing, display)
        leftovers += existing
    return tuple(leftovers)


def _delete_if_destroyed(
    project: SelftestProject, is_destroyed: bool, leftovers: tuple[Leftover, ...], display: Display
) -> None:
    """Delete the folder with the state, unless something remains that the state may contain."""
    if is_destroyed and all(each.retained for each in leftovers):
        project.delete()
        return
    command = f"trainyard selftest --destroy --folder {project.folder.parent}"
    display.line("selftest", f"the state of the stack is kept in {project.folder}; to destroy it: {command}")
