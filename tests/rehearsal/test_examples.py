"""The examples of other frameworks are jobs on the road, by the lines that their own pages give."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rehearsal.conftest import ROOT, Rehearse
from trainyard.models.layout import split_s3_uri

JOB = re.compile(r"```yaml\n(job: .*?)```", re.DOTALL)
SMALL = ["--steps", "4", "--batch-size", "4", "--length", "64", "--checkpoint-every", "2"]


def job_of(framework: str) -> dict[str, Any]:
    """As its page has it, made small."""
    page = Path(ROOT / "examples" / framework / "README.md").read_text()
    found = JOB.search(page)
    assert found is not None
    job: dict[str, Any] = yaml.safe_load(found[1])["job"]
    return {**job, "command": ["train.py", *SMALL], "processes_per_node": 1}


@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_it_trains_on_two_nodes_and_leaves_its_results(framework: str, rehearse: Rehearse, s3: Any) -> None:
    ended = rehearse(framework, job=job_of(framework))
    assert ended.status == 0, ended.told
    assert ended.report["nodes"] == 2
    bucket, prefix = split_s3_uri(ended.report["results_uri"])
    results = json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}results.json")["Body"].read())
    assert results["last_loss"] < results["first_loss"]
