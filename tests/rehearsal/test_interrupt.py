"""Ctrl-C in the middle: what was made goes, the report says so, nothing runs on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from rehearsal.hypervisor.processes import marked
from tests.rehearsal.conftest import clean_environment, write_stack


def test_ctrl_c_takes_down_what_was_made(tree: Path) -> None:
    write_stack(tree, "interrupted")
    process = subprocess.Popen(
        [sys.executable, "-m", "rehearsal", "run", "--stack", "interrupted", "--json"],
        cwd=tree,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "configuring itself" in line:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            break
    stdout, stderr = process.communicate(timeout=120)
    told = "".join(lines) + stderr
    assert process.returncode == 1, told
    report = json.loads(stdout)
    assert report["errors"] == ["interrupted: what was made goes now"]
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    assert report["leaked"] == []
    assert "Traceback" not in told
    assert marked(tree / "build/rehearsal/interrupted") == []
