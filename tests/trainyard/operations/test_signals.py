"""A launch that Pulumi's command provider started rolls back when the provider or the engine kills its launcher."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import eventually
from trainyard.config.project import PROJECT_ROOT

# The command of a launcher: it holds resources until it is interrupted, and reports its rollback to stderr and a file.
COMMAND = """
import pathlib, sys, time
from trainyard.operations.progress import PlainDisplay
from trainyard.operations.signals import (
    ignore_signals, separate_from_launcher, sigterm_as_interrupt, terminate_with_launcher
)
separate_from_launcher()
terminate_with_launcher()
folder = pathlib.Path(sys.argv[1])
with sigterm_as_interrupt():
    try:
        (folder / "started").touch()
        time.sleep(60)
    except KeyboardInterrupt as error:
        with ignore_signals():
            PlainDisplay().line("nodes", "rollback")
            PlainDisplay().line("nodes", "rollback after the reader has ended")
            (folder / "rollback").write_text(str(error))
"""
LAUNCHER = 'export TRAINYARD_LAUNCHER_PID=$$; "$0" -c "$1" "$2"; exit'


@pytest.mark.parametrize("killed", ["launcher", "process group"])
def test_killed_launcher_leads_to_a_rollback(killed: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", LAUNCHER, sys.executable, COMMAND, str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=PROJECT_ROOT,
    ) as launcher:
        assert launcher.stderr is not None
        eventually((tmp_path / "started").exists, "the start of the command")
        if killed == "process group":
            launcher.stderr.close()  # the engine has killed the provider, which reads the output
            os.killpg(launcher.pid, signal.SIGKILL)
        else:
            launcher.kill()
            assert b"rollback" in launcher.stderr.read()
        eventually((tmp_path / "rollback").exists, "the end of the rollback")
    assert "parent process has ended" in (tmp_path / "rollback").read_text()
