"""A kept rehearsal with the mocks engine: the commands on it, its end, and its end after a kill."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from rehearsal.hypervisor.processes import is_alive
from tests.polling import eventually
from tests.rehearsal.kept.kept_process import KeptRehearsalProcess, output
from tests.rehearsal.running import assert_no_leftovers, rehearsal_starter

pytestmark = pytest.mark.slow
JOB = "print('hello from the job')\n"


@pytest.fixture
def keep(tree_without_checks: Path) -> Iterator[Callable[..., KeptRehearsalProcess]]:
    with rehearsal_starter(tree_without_checks, KeptRehearsalProcess) as start:
        yield start


def test_commands_work_on_a_kept_rehearsal_and_nothing_remains(keep: Callable[..., KeptRehearsalProcess]) -> None:
    kept = keep("kept", "hello", script=JOB)
    description = kept.wait_until_kept()
    assert (description["stack"], description["engine"], description["errors"]) == ("kept", "mocks", [])

    status = output(kept.in_shell("trainyard status -s kept --json"))
    assert status["outcome"]["state"] == "succeeded"
    assert "hello from the job" in kept.in_shell("trainyard logs -s kept").stdout
    results = output(kept.in_shell(f"trainyard results -s kept --to {kept.folder}/downloaded --json"))
    assert results["run"] == status["record"]["run"]
    shell = output(
        kept.in_shell("""trainyard shell -s kept head --json -- 'echo $TRAINYARD_ROOT; exit 5'; [ $? = 5 ]""")
    )
    root = kept.folder / "nodes" / shell["instance"]
    assert (shell["exit_status"], shell["stdout"]) == (5, f"{root}\n")
    assert '"operation":"TerminateSession"' in kept.journal_text().replace(" ", "")
    assert kept.in_shell("trainyard stop -s kept").returncode == 0

    for command in ("up", "destroy"):
        refused = kept.in_shell(f"trainyard {command} -s kept --yes")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "trainyard rehearse --down -s kept" in refused.stderr
    assert "is kept in" in kept.trainyard("rehearse", "--keep", "-s", "kept").stderr

    report = output(kept.trainyard("rehearse", "--down", "-s", "kept", "--json"))
    assert (report["ok"], report["leaked"]) == (True, [])
    assert report["phases"]["kept"] > 0
    assert not (kept.folder / "environment").exists()
    assert_no_leftovers(kept)


def test_run_starts_a_changed_job_on_the_nodes_of_the_run_before(tree_without_checks: Path) -> None:
    with rehearsal_starter(tree_without_checks, KeptRehearsalProcess) as start:
        kept = start("kept-nodes", "hello", script=JOB)
        kept.wait_until_kept()
        before = output(kept.in_shell("trainyard status -s kept-nodes --json"))
        (kept.tree / "examples/hello/train.py").write_text("import sys\nprint('changed job', sys.argv[1:])\n")
        (kept.folder / "job.yaml").write_text("name: second\n")
        run = output(kept.in_shell(f"trainyard run -s kept-nodes --job-file {kept.folder}/job.yaml --json -- --lr 2"))
        assert "-second-" in run["run"]
        assert run["nodes"] == [node for group in before["groups"] for node in group["nodes"]]
        logs = kept.in_shell("trainyard logs -s kept-nodes --follow")
        assert "changed job ['--lr', '2']" in logs.stdout
        assert (logs.returncode, f"run {run['run']}: succeeded" in logs.stderr) == (0, True)
        assert "the nodes are kept until" in kept.in_shell("trainyard status -s kept-nodes").stdout
        assert output(kept.trainyard("rehearse", "--down", "-s", "kept-nodes", "--json"))["leaked"] == []
        assert not (kept.folder / "nodes").exists()
        assert_no_leftovers(kept)


class ShortRehearsal(KeptRehearsalProcess):
    options: ClassVar[tuple[str, ...]] = ("--keep", "--keep-hours", "0.001")


def test_kept_rehearsal_ends_after_its_hours(tree_without_checks: Path) -> None:
    with rehearsal_starter(tree_without_checks, ShortRehearsal) as start:
        kept = start("kept-shortly", "hello", script=JOB)
        assert kept.wait_for_exit().exit_status == 0
        eventually((kept.folder / "report.html").exists, "the end of the kept rehearsal", 60)
        assert "hours are over" in (kept.folder / "kept.log").read_text()
        eventually((kept.folder / "report.json").exists, "the report", 10)
        assert_no_leftovers(kept)


def test_down_after_a_kill_removes_the_nodes(keep: Callable[..., KeptRehearsalProcess]) -> None:
    kept = keep("kept-killed", "hello", script=JOB)
    kept.wait_until_kept()
    assert kept.background is not None
    kept.background.kill()
    background = kept.background
    eventually(lambda: not is_alive(background), "the end of the process", 10)
    completed = kept.trainyard("rehearse", "--down", "-s", "kept-killed")
    assert completed.returncode == 1
    assert "Its account is lost and could not be audited" in completed.stderr
    eventually(lambda: not any(map(_is_running, kept.family)), "the end of its processes", 10)
    assert_no_leftovers(kept)


def _is_running(process: psutil.Process) -> bool:
    return process.is_running() and is_alive(process)
