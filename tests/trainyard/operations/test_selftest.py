"""The selftest in the emulated account, with a program in place of the Pulumi CLI (selftest_pulumi.py)."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.conftest import REGION
from tests.polling import eventually
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.aws.reservations import cancel_reservation, find_reservations
from trainyard.errors import InputError
from trainyard.operations import selftest, selftest_project
from trainyard.operations.selftest_plan import Runs, plan
from trainyard.operations.selftest_project import SelftestProject, StepError
from trainyard.operations.selftest_report import SelftestReport

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
EXECUTABLE = """\
#!/bin/sh
PYTHONPATH={root} exec {python} -m tests.trainyard.operations.selftest_pulumi {folder} "$@"
"""
FAILED_UP = """\
 +  command:local:Command launch creating (5s)   12.0 s  capacity   attempt 1: none (us-east-1a: Unsupported)
Diagnostics:
  command:local:Command (launch):
    error: exit status 1: running "./trainyard/launcher launch"
    trainyard: the head could not be configured
"""
NO_CAPACITY = """\
    3.0 s  capacity             attempt 1: none for 1 x g6e.12xlarge (us-east-1a: InsufficientInstanceCapacity)
trainyard: no Availability Zone has capacity for 1 x g6e.12xlarge after 1 attempt
"""


class Pulumi:
    """The executable named pulumi: its calls, and changes of their results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def change(self, **changes: dict[str, Any]) -> None:
        """Change the results of calls, such as up_2 for the second `pulumi up`."""
        names = {name.replace("_", " "): change for name, change in changes.items()}
        (self._folder / "changes.json").write_text(json.dumps(names))

    @property
    def calls(self) -> list[dict[str, Any]]:
        file = self._folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def commands(self) -> list[str]:
        """The calls that change the stack, without most of their options."""
        names = ("up", "destroy")
        return [" ".join(call["argv"]) for call in self.calls if call["argv"][0] in names]


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pulumi:
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "pulumi"
    file.write_text(EXECUTABLE.format(root=ROOT, python=sys.executable, folder=folder))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(selftest_project, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(selftest, "POLL_SECONDS", 0.05)
    return Pulumi(folder)


@pytest.fixture
def options(tmp_path: Path, account: EmulatedAws) -> selftest.SelftestOptions:
    return selftest.SelftestOptions(
        runs=Runs.FIRST, region=REGION, folder=tmp_path / "state", report=tmp_path / "report.json"
    )


Run = Callable[..., SelftestReport]


@pytest.fixture
def display() -> RecordingDisplay:
    return RecordingDisplay()


@pytest.fixture
def run(options: selftest.SelftestOptions, display: RecordingDisplay) -> Run:
    """Run the selftest; `runs` selects the runs."""

    def start(runs: Runs = Runs.FIRST) -> SelftestReport:
        selected = selftest.SelftestOptions(
            runs=runs, region=options.region, folder=options.folder, report=options.report
        )
        return selftest.selftest(selected, display, lambda question: None)

    return start


def results(report: SelftestReport) -> list[tuple[str, str]]:
    return [(step.command, step.status) for step in report.steps]


def test_run_1_is_up_up_end_destroy_up_destroy(run: Run, pulumi: Pulumi, options: selftest.SelftestOptions) -> None:
    report = run()
    assert results(report) == [
        ("pulumi up", "passed"),
        ("pulumi up --expect-no-changes", "passed"),
        ("wait for the end of the run", "passed"),
        ("trainyard destroy", "passed"),
        ("pulumi up", "passed"),
        ("trainyard destroy", "passed"),
    ]
    assert report.ok, report.steps
    assert [command.split()[0] for command in pulumi.commands] == ["up", "up", "destroy", "up", "destroy"]
    assert ["--expect-no-changes" in command for command in pulumi.commands] == [False, True, False, False, False]
    assert report.steps[0].launch is not None
    assert report.steps[0].launch.phases == {"startup": 3.5}
    assert [(each.kind, each.retained) for each in report.leftovers] == [("s3", True)]
    assert SelftestReport.model_validate_json(options.report.read_text()) == report
    assert "# trainyard selftest: passed" in options.report.with_suffix(".md").read_text()
    assert list(options.folder.iterdir()) == []  # the state is deleted, because nothing is left in it


def test_state_and_stack_file_are_separate_from_the_users(run: Run, pulumi: Pulumi, monkeypatch: Any) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://state-of-the-user")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "passphrase-of-the-user")
    stacks = sorted((ROOT / "stacks").iterdir())
    pulumi.change(up_1={"exit": 1})
    stack = run().stack
    assert stack.startswith("selftest-")
    for call in pulumi.calls:
        folder = call["argv"][call["argv"].index("--cwd") + 1] if "--cwd" in call["argv"] else call["cwd"]
        assert call["environment"]["PULUMI_BACKEND_URL"] == f"file://{folder}/state"
        assert call["environment"]["PULUMI_CONFIG_PASSPHRASE_FILE"] == f"{folder}/passphrase"
        assert "PULUMI_CONFIG_PASSPHRASE" not in call["environment"]
        assert Path(folder).name == stack
    assert sorted((ROOT / "stacks").iterdir()) == stacks


def test_passphrase_is_readable_by_the_user_only(pulumi: Pulumi, options: selftest.SelftestOptions) -> None:
    project = SelftestProject(options.folder / "selftest-1", REGION)
    project.create()
    file = project.folder / "passphrase"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text()) > 30


def test_second_up_that_changes_something_fails_and_destroys(run: Run, pulumi: Pulumi) -> None:
    line = " ~  aws:s3:BucketPolicy data updating (0s) [diff: ~policy]"
    pulumi.change(up_2={"exit": 255, "output": f"{line}\nerror: no changes were expected but changes occurred"})
    report = run()
    assert [status for _, status in results(report)] == ["passed", "failed", "not_run", "not_run", "not_run", "passed"]
    assert report.steps[1].errors[1:] == (line, "error: no changes were expected but changes occurred")
    assert not report.ok
    assert pulumi.commands[-1].startswith("destroy")


def test_failed_up_is_reported_with_its_errors_and_destroys(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"exit": 255, "output": FAILED_UP})
    report = run(Runs.ALL)
    first = report.steps[0]
    assert first.status == "failed"
    assert first.errors == ("exit status 255", *FAILED_UP.splitlines()[1:])
    assert first.progress == ("12.0 s  capacity   attempt 1: none (us-east-1a: Unsupported)",)
    assert [command.split()[0] for command in pulumi.commands] == ["up", "destroy"]
    assert {step.run for step in report.steps} == {"1"}  # run 2 costs more, and does not start


def test_dataset_that_is_uploaded_again_fails(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_3={"rewrite": True})
    report = run()
    assert report.steps[4].errors == ("objects of the dataset were written again: datasets/python-stdlib/index.json",)


def test_failed_run_fails_and_destroys(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"outcome": "failed"})
    report = run()
    assert report.steps[2].errors[0].endswith("failed: r")
    assert results(report)[-1] == ("trainyard destroy", "passed")


def test_interrupt_destroys_and_is_reported(pulumi: Pulumi, options: selftest.SelftestOptions) -> None:
    pulumi.change(up_1={"sleep": 600})
    command = [sys.executable, "-m", "trainyard", "selftest", "--yes", "--run", "1", "--region", REGION]
    paths = ["--folder", str(options.folder), "--report", str(options.report)]
    with subprocess.Popen([*command, *paths], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        eventually(lambda: bool(pulumi.commands), "pulumi up")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    report = SelftestReport.model_validate_json(options.report.read_text())
    assert (report.interrupted, report.ok) == (True, False)
    assert report.steps[0].errors == ("interrupted",)
    assert [command.split()[0] for command in pulumi.commands] == ["up", "destroy"]


def test_step_ends_at_its_time_limit(pulumi: Pulumi, options: selftest.SelftestOptions) -> None:
    project = SelftestProject(options.folder / "selftest-2", REGION)
    project.create()
    with pytest.raises(StepError) as failure:
        project.run(["sleep", "600"], 0.001, RecordingDisplay())
    assert failure.value.lines[0] == "the time limit of the step, 0.001 minutes, has passed"


def test_command_that_ignores_the_interrupt_is_killed(
    pulumi: Pulumi, options: selftest.SelftestOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest_project, "INTERRUPT_TIMEOUT_SECONDS", 0.1)
    project = SelftestProject(options.folder / "selftest-3", REGION)
    project.create()
    with pytest.raises(StepError):
        project.run(["sh", "-c", "trap '' INT; echo $$; sleep 600"], 0.005, display := RecordingDisplay())
    process = int(display.lines[0].split()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def cancel_after_check(display: RecordingDisplay) -> Callable[[], bool]:
    """Return a function that cancels all reservations, as the controller does, once the market was checked."""

    def cancel() -> bool:
        if not any("step 2 passed" in line for line in display.lines):
            return False
        for reservation in find_reservations(REGION, {}):
            cancel_reservation(REGION, reservation.id)
        return True

    return cancel


def test_run_2_is_on_demand_in_a_reservation_then_spot(
    run: Run, pulumi: Pulumi, display: RecordingDisplay, run_in_background: RunInBackground
) -> None:
    run_in_background(cancel_after_check(display))
    pulumi.change(up_2={"run_seconds": 3600})
    report = run(Runs.SECOND)
    assert {status for _, status in results(report)} == {"passed"}, report.steps
    reserved, spot = report.steps[0].launch, report.steps[4].launch
    assert reserved is not None
    assert spot is not None
    (reservation,) = reserved.reservations
    assert (reservation.state, reservation.instances, reservation.available) == ("active", 1, 0)
    assert ([node.market for node in reserved.nodes], [node.market for node in spot.nodes]) == (["on-demand"], ["spot"])
    assert spot.reservations == ()
    assert report.estimated_usd == pytest.approx(10.5, abs=0.1)  # an hour of one node


def test_instance_outside_its_reservation_fails(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"outside": True})
    report = run(Runs.SECOND)
    assert report.steps[1].errors[0].startswith("0 of 1 nodes use it")


def test_without_on_demand_capacity_spot_runs(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"exit": 255, "output": NO_CAPACITY})
    report = run(Runs.SECOND)
    statuses = [status for _, status in results(report)]
    assert statuses == ["no_capacity", "not_run", "not_run", "passed", "passed", "passed", "passed", "passed"]
    assert "us-east-1a: InsufficientInstanceCapacity" in report.steps[0].progress[0]
    assert not report.ok


def test_leftovers_have_price_and_command_and_keep_the_state(
    run: Run, pulumi: Pulumi, options: selftest.SelftestOptions, display: RecordingDisplay
) -> None:
    pulumi.change(up_1={"outcome": "failed"}, destroy_1={"exit": 255})
    report = run(Runs.SECOND)
    remaining = {each.kind: each for each in report.leftovers if not each.retained}
    # The stop of the run cancels the reservation; this test's instance is not a member of a group.
    instance = remaining["ec2:instance"]
    assert instance.price == "10.49 USD per hour"
    assert instance.command == f"aws ec2 terminate-instances --region {REGION} --instance-ids {instance.id}"
    assert "object_versions.delete()" in remaining["s3"].command
    (folder,) = options.folder.iterdir()
    assert any(f"the state of the stack is kept in {folder}" in line for line in display.lines)

    leftovers = selftest.destroy_existing_stacks(options.folder, display)
    assert [each.kind for each in leftovers] == ["s3"]
    assert list(options.folder.iterdir()) == []


def test_refused_confirmation_creates_nothing(pulumi: Pulumi, options: selftest.SelftestOptions) -> None:
    questions: list[str] = []

    def refuse(question: str) -> None:
        questions.append(question)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selftest.selftest(options, RecordingDisplay(), refuse)
    assert "USD?" in questions[0]
    assert pulumi.calls == []


def test_report_has_no_account_id_of_the_caller(run: Run, pulumi: Pulumi, options: selftest.SelftestOptions) -> None:
    account = boto3.client("sts", region_name=REGION).get_caller_identity()["Account"]
    arn = f"arn:aws:iam::{account}:user/someone@example.com"
    pulumi.change(up_1={"exit": 1, "output": f"error: {arn} is not authorized from 203.0.113.7"})
    run()
    for file in (options.report, options.report.with_suffix(".md")):
        text = file.read_text()
        assert "is not authorized" in text
        assert not [private for private in (account, "someone", "203.0.113.7") if private in text]


def test_missing_pulumi_is_one_error(
    options: selftest.SelftestOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="the Pulumi CLI is not on PATH"):
        selftest.selftest(options, RecordingDisplay(), lambda question: None)


def test_report_in_a_missing_folder_is_refused(
    pulumi: Pulumi, options: selftest.SelftestOptions, tmp_path: Path
) -> None:
    report = tmp_path / "missing" / "report.json"
    changed = selftest.SelftestOptions(runs=options.runs, region=REGION, folder=options.folder, report=report)
    with pytest.raises(InputError, match="--report"):
        selftest.selftest(changed, RecordingDisplay(), lambda question: None)


def test_maximum_cost_counts_every_launch_until_its_time_limit() -> None:
    (cpu,) = plan(Runs.FIRST)
    hours = sum(step.minutes for step in cpu.steps) / 60
    assert cpu.launches == 2
    assert cpu.maximum_usd == pytest.approx(2 * 0.48 + 0.12 * hours, abs=0.01)


def test_spot_and_on_demand_differ_in_capacity_only() -> None:
    on_demand, spot = plan(Runs.SECOND)
    assert on_demand.settings.reserves_capacity(on_demand.settings.groups[0])
    assert not spot.settings.reserves_capacity(spot.settings.groups[0])
    changed = {**spot.raw_settings, "capacity": on_demand.raw_settings["capacity"]}
    assert changed == on_demand.raw_settings
    assert {part.settings.nodes for part in (on_demand, spot)} == {1}


def test_failed_audit_is_an_error_and_keeps_the_state(
    run: Run, pulumi: Pulumi, options: selftest.SelftestOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object) -> None:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstances")

    monkeypatch.setattr(selftest, "audit", deny)
    pulumi.change(up_1={"exit": 1})
    report = run()
    assert "resources may remain" in report.errors[0]
    assert [folder.name for folder in options.folder.iterdir()] == [report.stack]


def test_folder_is_deleted_when_the_stack_cannot_be_created(
    run: Run, pulumi: Pulumi, options: selftest.SelftestOptions
) -> None:
    pulumi.change(stack_1={"exit": 1})
    with pytest.raises(StepError, match="pulumi stack failed"):
        run()
    assert list(options.folder.iterdir()) == []


def test_failed_preview_of_a_later_run_creates_nothing(
    run: Run, pulumi: Pulumi, options: selftest.SelftestOptions
) -> None:
    pulumi.change(preview_3={"exit": 255, "output": "error: the quota is 0"})
    with pytest.raises(StepError, match="the quota is 0"):
        run(Runs.ALL)
    assert pulumi.commands == []
    assert list(options.folder.iterdir()) == []
