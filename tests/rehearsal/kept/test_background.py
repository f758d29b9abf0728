"""The background process of a kept rehearsal, and the foreground process that waits until it is ready."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor.processes import is_alive
from tests.polling import eventually
from tests.rehearsal.conftest import ROOT

PROGRAM = """
import sys, time
from pathlib import Path
from rehearsal.kept.background import Background
from trainyard.models.kept_rehearsal import KeptRehearsal

folder = Path(sys.argv[2])
background = Background.start()
print("starting", file=sys.stderr, flush=True)
{action}
kept = KeptRehearsal(stack="a", process=1, endpoint="http://127.0.0.1:1", engine="mocks", backend="process",
    environment="file", ends_at=0.0, errors={errors}, arguments={options})
try:
    background.announce(kept, folder / "log")
except BrokenPipeError:
    (folder / "orphan").touch()
    sys.exit(1)
print("in the background", file=sys.stderr, flush=True)
while not (folder / "end").exists():
    time.sleep(0.05)
"""


def start(folder: Path, action: str = "", errors: str = "()", options: str = "()") -> "subprocess.Popen[str]":
    program = PROGRAM.format(action=action, errors=errors, options=options)
    return subprocess.Popen(
        [sys.executable, "-c", program, "run", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def log(folder: Path) -> str:
    return (folder / "log").read_text() if (folder / "log").exists() else ""


@pytest.mark.parametrize(("errors", "exit_status"), [("()", 0), ("('the job failed',)", 1)])
def test_foreground_ends_when_the_rehearsal_is_ready(errors: str, exit_status: int, tmp_path: Path) -> None:
    with start(tmp_path, errors=errors) as process:
        stdout, stderr = process.communicate(timeout=30)  # the background process has closed both
    (tmp_path / "end").touch()
    assert process.returncode == exit_status
    assert stdout.startswith("the rehearsal is kept. To use it, in another shell: source file, then trainyard ")
    assert stdout.count("\n") == 1
    assert stderr == "starting\n"
    eventually(lambda: log(tmp_path) == "in the background\n", "the output in the log", 10)


def test_foreground_prints_the_description_as_json(tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    with start(tmp_path, options='("--json",)') as process:
        stdout, _ = process.communicate(timeout=30)
    assert stdout.startswith('{"stack":"a"')


def test_rehearsal_that_ends_before_it_is_ready_sets_the_exit_status(tmp_path: Path) -> None:
    with start(tmp_path, "sys.exit(7)") as process:
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (7, "", "starting\n")


@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)],
)
def test_foreground_forwards_signals(sent: int, received: int, tmp_path: Path) -> None:
    action = (
        "import signal\n"
        f"signal.signal({received}, lambda number, frame: sys.exit(9))\n"
        "print('waiting', file=sys.stderr, flush=True)\n"
        "time.sleep(30)"
    )
    with start(tmp_path, action) as process:
        assert process.stderr is not None
        assert [process.stderr.readline(), process.stderr.readline()] == ["starting\n", "waiting\n"]
        process.send_signal(sent)
        assert process.wait(20) == 9


def test_rehearsal_is_not_kept_after_a_kill_of_its_foreground_process(tmp_path: Path) -> None:
    with start(tmp_path, "time.sleep(1)") as process:
        assert process.stderr is not None
        process.stderr.readline()
        (child,) = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(child), "the end of the background process", 20)
    assert (tmp_path / "orphan").exists()
