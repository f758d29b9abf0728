"""The progress file that a job of the user writes."""

import json
import os
import pathlib
import re
import time
from pathlib import Path

import pytest

from trainyard.models.rank_progress import RankProgress, progress_file

DOCUMENT = Path(__file__).parents[3] / "docs/jobs.md"


def test_documented_lines_write_a_progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lines,) = re.findall(r"```python\n(.*?progress-.*?)```", DOCUMENT.read_text(), re.DOTALL)
    monkeypatch.setenv("METRICS_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "5")
    measured = {"step": 7, "step_seconds": 0.25, "seconds_in_collectives": 0.125}
    exec(lines, {"json": json, "os": os, "pathlib": pathlib, "time": time, **measured})
    written = RankProgress.model_validate_json(progress_file(tmp_path, 5).read_text())
    assert (written.rank, written.step, written.step_seconds, written.busy_seconds) == (5, 7, 0.25, 0.125)
    assert [path.name for path in tmp_path.iterdir()] == ["progress-5.json"]
