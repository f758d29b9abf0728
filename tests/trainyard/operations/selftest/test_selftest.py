"""The selftest in the emulated account, with a program in place of the Pulumi CLI (pulumi_program.py)."""

import json
import signal
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
from trainyard.operations.selftest import execution, operation, project
from trainyard.operations.selftest.project import ActionError
from trainyard.operations.selftest.report import SelftestReport

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
EXECUTABLE = """\
#!/bin/sh
PYTHONPATH={root} exec {python} -m tests.trainyard.operations.selftest.pulumi_program {folder} "$@"
"""
FAILED_UP = """\
 +  command:local:Command launch creating (5s)   12.0 s  capacity   attempt 1: none (us-east-1a: Unsupported)
Diagnostics:
  command:local:Command (launch):
    error: exit status 1: running "./launcher launch"
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
        """The calls that change the stack, without their options."""
        return [call["argv"][0] for call in self.calls if call["argv"][0] in ("up", "destroy")]


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pulumi:
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "pulumi"
    file.write_text(EXECUTABLE.format(root=ROOT, python=sys.executable, folder=folder))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(project, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(execution, "POLL_SECONDS", 0.05)
    return Pulumi(folder)


@pytest.fixture
def display() -> RecordingDisplay:
    return RecordingDisplay()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


Run = Callable[..., SelftestReport]


@pytest.fixture
def run(account: EmulatedAws, state: Path, report_file: Path, display: RecordingDisplay) -> Run:
    """Run the selftest; `step` selects one."""

    def start(step: str | None = "1", file: Path = report_file, confirm: Any = lambda question: None) -> SelftestReport:
        return operation.selftest(step, REGION, state, file, display, confirm)

    return start


def statuses(report: SelftestReport) -> list[str]:
    return [result.status for result in report.results]


def test_step_1_is_up_up_end_destroy_up_destroy(run: Run, pulumi: Pulumi, report_file: Path, state: Path) -> None:
    report = run()
    assert report.ok, report.results
    assert pulumi.commands == ["up", "up", "destroy", "up", "destroy"]
    assert ["--expect-no-changes" in call["argv"] for call in pulumi.calls if call["argv"][0] == "up"] == [0, 1, 0]
    assert report.results[0].facts[0].endswith(": startup 4 s")
    assert [each.kind for each in report.retained] == ["s3"]
    assert SelftestReport.model_validate_json(report_file.read_text()) == report
    assert "# trainyard selftest: passed" in report_file.with_suffix(".md").read_text()
    assert list(state.iterdir()) == []  # deleted, because nothing is left in it


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


def test_second_up_that_changes_something_fails_and_destroys(run: Run, pulumi: Pulumi) -> None:
    line = " ~  aws:s3:BucketPolicy data updating (0s) [diff: ~policy]"
    pulumi.change(up_2={"exit": 255, "output": f"{line}\nerror: no changes were expected but changes occurred"})
    report = run()
    assert statuses(report) == ["passed", "failed", "not_run", "not_run", "not_run", "passed"]
    assert report.results[1].errors[1:] == (line, "error: no changes were expected but changes occurred")
    assert not report.ok


def test_failed_up_is_reported_with_its_errors_and_ends_the_selftest(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"exit": 255, "output": FAILED_UP})
    report = run(None)
    first = report.results[0]
    assert first.errors == ("exit status 255", *FAILED_UP.splitlines()[1:])
    assert first.progress == ("12.0 s  capacity   attempt 1: none (us-east-1a: Unsupported)",)
    assert pulumi.commands == ["up", "destroy"]  # step 2 costs more, and does not start


def test_dataset_that_is_uploaded_again_fails(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_3={"rewrite": True})
    error = "objects of the dataset were written again: datasets/python-stdlib/index.json"
    assert run().results[4].errors == (error,)


def test_failed_run_fails_and_destroys(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"outcome": "failed"})
    report = run()
    assert report.results[2].errors[0].endswith("failed: r")
    assert pulumi.commands[-1] == "destroy"


def test_interrupt_destroys_and_is_reported(
    pulumi: Pulumi, account: EmulatedAws, state: Path, report_file: Path
) -> None:
    pulumi.change(up_1={"sleep": 600})
    command = [sys.executable, "-m", "trainyard", "selftest", "--yes", "--step", "1", "--region", REGION]
    paths = ["--folder", str(state), "--report", str(report_file)]
    with subprocess.Popen([*command, *paths], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        eventually(lambda: bool(pulumi.commands), "pulumi up")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    report = SelftestReport.model_validate_json(report_file.read_text())
    assert (report.interrupted, report.destroyed, report.ok) == (True, True, False)
    assert report.results[0].errors == ("interrupted",)
    assert pulumi.commands == ["up", "destroy"]


def waits_for_reservation(display: RecordingDisplay) -> bool:
    return any("nodes and reservations: cr-" in line for line in display.lines)


def cancel_when_awaited(display: RecordingDisplay) -> Callable[[], bool]:
    """Return a function that cancels all reservations, as the controller does, once the selftest waits for it."""

    def cancel() -> bool:
        if not waits_for_reservation(display):
            return False
        for reservation in find_reservations(REGION, {}):
            cancel_reservation(REGION, reservation.id)
        return True

    return cancel


def test_step_2_is_on_demand_in_a_reservation_then_spot(
    run: Run, pulumi: Pulumi, display: RecordingDisplay, run_in_background: RunInBackground
) -> None:
    run_in_background(cancel_when_awaited(display))
    report = run("2")
    assert report.ok, report.results
    on_demand, spot = report.results[0].facts[1], report.results[3].facts[1]
    assert "g6e.12xlarge in us-east-1a, on-demand, cr-" in on_demand
    assert spot.endswith("g6e.12xlarge in us-east-1a, spot, without reservation")
    assert waits_for_reservation(display)
    seconds = sum(result.seconds for result in report.results)
    assert report.estimated_usd == pytest.approx(10.7 * seconds / 3600, abs=0.01)


def test_instance_outside_its_reservation_fails(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"outside": True})
    assert run("2").results[0].errors[0].endswith("on-demand, without reservation")


def test_without_on_demand_capacity_spot_runs(run: Run, pulumi: Pulumi) -> None:
    pulumi.change(up_1={"exit": 255, "output": NO_CAPACITY})
    report = run("2")
    assert statuses(report) == ["no_capacity", "not_run", "passed", "passed", "passed", "passed"]
    assert "us-east-1a: InsufficientInstanceCapacity" in report.results[0].progress[0]
    assert not report.ok


def test_leftovers_are_reported_and_destroyed_later(
    run: Run, pulumi: Pulumi, state: Path, display: RecordingDisplay
) -> None:
    pulumi.change(up_1={"outcome": "failed"}, destroy_1={"exit": 255})
    report = run("2")
    assert not report.destroyed
    assert {each.kind for each in report.remaining} >= {"ec2:instance", "s3"}
    assert report.errors == ("remaining resources cost at most 10.70 USD per hour until they are deleted",)
    (folder,) = state.iterdir()
    command = f"trainyard selftest --destroy --folder {state}"
    assert f"selftest the state of the stack is kept in {folder}; to destroy it: {command}" in display.lines
    display.lines.clear()
    operation.destroy_existing_stacks(state, display)
    assert list(state.iterdir()) == []
    assert [line.split()[1] for line in display.lines if "output re" in line] == ["retained:"]


def test_nothing_to_destroy_is_reported(state: Path, display: RecordingDisplay) -> None:
    operation.destroy_existing_stacks(state, display)
    assert display.lines == ["selftest no stacks of the selftest exist"]


def test_refused_confirmation_creates_nothing(run: Run, pulumi: Pulumi) -> None:
    questions: list[str] = []

    def refuse(question: str) -> None:
        questions.append(question)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(confirm=refuse)
    assert "USD?" in questions[0]
    assert pulumi.calls == []


def test_both_report_files_are_redacted(run: Run, pulumi: Pulumi, report_file: Path) -> None:
    account = boto3.client("sts", region_name=REGION).get_caller_identity()["Account"]
    arn = f"arn:aws:iam::{account}:user/someone@example.com"
    pulumi.change(up_1={"exit": 1, "output": f"error: {arn} is not authorized from 203.0.113.7"})
    run()
    for file in (report_file, report_file.with_suffix(".md")):
        text = file.read_text()
        assert "is not authorized" in text
        assert not [private for private in (account, "someone", "203.0.113.7") if private in text]


def test_missing_pulumi_is_one_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="the Pulumi CLI is not on PATH"):
        run()


def test_report_in_a_missing_folder_is_refused(run: Run, pulumi: Pulumi, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--report"):
        run(file=tmp_path / "missing" / "report.json")


def test_failed_audit_is_an_error_and_keeps_the_state(
    run: Run, pulumi: Pulumi, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object) -> None:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstances")

    monkeypatch.setattr(execution, "audit", deny)
    pulumi.change(up_1={"exit": 1})
    report = run()
    assert "resources may remain" in report.errors[0]
    assert [folder.name for folder in state.iterdir()] == [report.stack]


def test_failed_preview_of_a_later_step_creates_nothing(run: Run, pulumi: Pulumi, state: Path) -> None:
    pulumi.change(preview_3={"exit": 255, "output": "error: the quota is 0"})
    with pytest.raises(ActionError, match="the quota is 0"):
        run(None)
    assert pulumi.commands == []
    assert list(state.iterdir()) == []
