"""The example with Lightning runs in a rehearsal as in its README. test_your_job rehearses Accelerate."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rehearsal.conftest import ROOT, Rehearse
from trainyard.models.layout import split_s3_uri

pytestmark = pytest.mark.slow

SMALL = ["--steps", "4", "--batch-size", "4", "--length", "64", "--checkpoint-every", "2"]


def lightning_job() -> dict[str, Any]:
    """Return the job of the README with fewer steps."""
    page = Path(ROOT / "examples/frameworks/README.md").read_text()
    jobs = [yaml.safe_load(block)["job"] for block in re.findall(r"```yaml\n(job: .*?)```", page, re.DOTALL)]
    (job,) = [job for job in jobs if job["name"] == "lightning"]
    return {**job, "command": ["train_lightning.py", *SMALL], "processes_per_node": 1}


def test_example_trains_on_two_nodes_and_writes_results(rehearse: Rehearse, s3: Any) -> None:
    ended = rehearse("lightning", job=lightning_job())
    assert ended.exit_status == 0, ended.stderr
    assert ended.report["nodes"] == 2
    bucket, prefix = split_s3_uri(ended.report["results_uri"])
    results = json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}results.json")["Body"].read())
    assert results["last_loss"] < results["first_loss"]
