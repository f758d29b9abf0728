"""A short chaos run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rehearsal.conftest import RUN_TIMEOUT_SECONDS, clean_environment

pytestmark = pytest.mark.slow


def test_short_chaos_run_passes_its_checks(tree: Path) -> None:
    options = ["--seed", "4", "--minutes", "0.5", "--period", "15", "--steps", "600", "--json"]
    process = subprocess.run(
        [sys.executable, "-m", "rehearsal", "chaos", *options],
        cwd=tree,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=2 * RUN_TIMEOUT_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    report = json.loads(process.stdout)
    assert report == json.loads((tree / "build/rehearsal/local/chaos.json").read_text())
    assert len(report["recoveries"]) == 2  # seed 4: a node hangs, a rank runs out of memory
    assert all(each["next_step_seconds"] for each in report["recoveries"])
