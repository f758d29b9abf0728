"""A hostile job on booted nodes: each attack on its node, on other runs and on the account is refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.conftest import CompletedRehearsal, run_rehearsal, s3_client, start_account, write_stack
from tests.rehearsal.hostile_job import ATTACKS
from trainyard.node.job_user import JOB_USER

pytestmark = pytest.mark.booted
STACK = "hostile"


@pytest.fixture(scope="module")
def account(tree: Path) -> Iterator[dict[str, str]]:
    with start_account(tree, "--backend", "nspawn") as environment:
        yield environment


@pytest.fixture(scope="module")
def ended(tree: Path, account: dict[str, str]) -> CompletedRehearsal:
    (tree / "hostile").mkdir()
    shutil.copy(Path(__file__).with_name("hostile_job.py"), tree / "hostile/hostile_job.py")
    (tree / "hostile/requirements.txt").write_text("numpy\n")  # the node's environment has it: nothing is installed
    job = {"name": "hostile", "source": "hostile", "command": ["hostile_job.py"], "processes_per_node": 1}
    write_stack(tree, STACK, job=job, nodes=1)
    return run_rehearsal(tree, "--stack", STACK, "--backend", "nspawn", "--profile", "instant", environment=account)


@pytest.fixture(scope="module")
def findings(ended: CompletedRehearsal, tree: Path) -> dict[str, Any]:
    (file,) = (tree / f"build/rehearsal/{STACK}/results").rglob("findings-0.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_the_job_succeeds_within_its_permissions(ended: CompletedRehearsal, findings: dict[str, Any]) -> None:
    assert "succeeded: all ranks ended with exit code 0" in ended.stderr
    # A rehearsal reports each denied call as an error: these are all of the job.
    denied = [error for error in ended.report["errors"] if "assumed-role/identity-job-" in error]
    assert denied == ended.report["errors"], ended.stderr
    assert findings["user"] == JOB_USER


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_is_refused(findings: dict[str, Any], attack: str) -> None:
    outcome = findings["attacks"][attack]
    assert outcome.startswith("refused: "), outcome
    assert "NotImplemented" not in outcome


def test_links_of_the_job_are_not_followed(ended: CompletedRehearsal, account: dict[str, str]) -> None:
    """The agent, which is root, copies logs and metrics to S3."""
    s3 = s3_client(account)
    (bucket,) = (each["Name"] for each in s3.list_buckets()["Buckets"] if each["Name"].startswith("trainyard-data-"))
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="runs/")
    keys = [item["Key"] for page in pages for item in page["Contents"]]
    assert any("/logs/" in key for key in keys)
    for key in keys:
        content = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        assert b"credentials_token" not in content, key
        assert b"root:" not in content, key
