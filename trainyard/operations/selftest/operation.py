"""`trainyard selftest`: executes steps in a separate Pulumi stack, destroys it and writes the report."""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from yaml import YAMLError

from trainyard.aws.clients import client
from trainyard.errors import InputError, Problem
from trainyard.operations.progress import Display
from trainyard.operations.pulumi_cli import require_pulumi
from trainyard.operations.selftest.execution import Execution
from trainyard.operations.selftest.plan import CREATE_MINUTES, DESTROY_MINUTES, Step, format_plan, maximum_usd, plan
from trainyard.operations.selftest.project import ActionError, SelftestProject
from trainyard.operations.selftest.redaction import private_texts
from trainyard.operations.selftest.report import SelftestReport, write_report
from trainyard.quantity import quantity

DEFAULT_FOLDER = Path.home() / ".trainyard" / "selftest"


def selftest(
    number: str | None, region: str, folder: Path, report_file: Path, display: Display, confirm: Callable[[str], None]
) -> SelftestReport:
    """Execute a step, or both, destroy the stack, and return the redacted report, which is also written.

    `folder`: folder of the stacks' folders. `confirm` receives account, region and maximum cost, and raises to refuse
    them. Raises InputError without the Pulumi CLI, for an unknown step or for a report file in a missing folder, and
    ActionError when a preview fails.
    """
    steps = plan(number)
    require_pulumi()
    if not report_file.absolute().parent.is_dir() or report_file.suffix == ".md":
        reason, fix = "its folder does not exist, or it ends in .md", "Name a JSON file in an existing folder"
        raise InputError([Problem("--report", str(report_file), reason, fix, "report_not_writable")])
    identity = client("sts", region).get_caller_identity()
    for path in _existing_folders(folder):
        display.line(
            "selftest",
            f"stack {path.name} of an earlier selftest was not destroyed; to destroy it: trainyard selftest --destroy",
        )
    for line in format_plan(steps):
        display.line("cost", line)
    confirm(f"Run it in account {identity['Account']}, {region}, for at most {maximum_usd(steps):.2f} USD?")
    project = SelftestProject(folder / f"selftest-{secrets.token_hex(2)}", region)
    try:
        project.create()
        _preview(project, steps, display)
    except BaseException:  # the stack has no resources yet
        shutil.rmtree(project.folder, ignore_errors=True)
        raise
    private = private_texts(identity)
    execution = Execution(project, steps, display, lambda report: write_report(report, report_file, private))
    execution.run()
    if execution.report.destroyed:
        shutil.rmtree(project.folder)
    else:
        command = f"trainyard selftest --destroy --folder {folder}"
        display.line("selftest", f"the state of the stack is kept in {project.folder}; to destroy it: {command}")
    return write_report(execution.report, report_file, private)


def _preview(project: SelftestProject, steps: Sequence[Step], display: Display) -> None:
    """Preview all steps before any of them costs anything. Raises ActionError, for example without a quota."""
    for step in steps:
        display.line("preview", f"{step.title}: pulumi preview (at most {quantity(CREATE_MINUTES, 'minute')})")
        project.write_settings(step.raw_settings)
        project.run_pulumi(CREATE_MINUTES, display, "preview")


def _existing_folders(folder: Path) -> list[Path]:
    """Return the folders of stacks that an earlier selftest did not destroy."""
    return sorted(path.parent for path in folder.glob("selftest-*/Pulumi.yaml"))


def destroy_existing_stacks(folder: Path, display: Display) -> None:
    """Destroy all stacks that earlier selftests left. Raises ActionError with those that could not be destroyed."""
    paths = _existing_folders(folder)
    if not paths:
        display.line("selftest", "no stacks of the selftest exist")
        return
    require_pulumi()
    failures = []
    for path in paths:
        try:
            SelftestProject.load(path).destroy(DESTROY_MINUTES, display)
            shutil.rmtree(path)
        except (ActionError, OSError, KeyError, TypeError, YAMLError) as error:  # the other stacks are billed too
            failures.append(f"{path.name} was not destroyed, its folder is {path}: {error}")
    if failures:
        raise ActionError("\n".join(failures))
