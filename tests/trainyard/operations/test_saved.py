"""Checkpoints and results of a custom job in `trainyard status` and `trainyard results`."""

import json
import time
from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.test_runs import run_command
from trainyard.aws.clients import client
from trainyard.models.layout import RunLayout
from trainyard.models.run import Outcome, RunRecord
from trainyard.operations.cluster import Cluster
from trainyard.operations.saved import format_saved, list_saved
from trainyard.operations.status import format_status, read_status
from trainyard.times import format_time


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return clusters.create_cluster(REGION, train=None, command=("train.py",))


@pytest.fixture
def record(cluster: clusters.Cluster) -> RunRecord:
    """Write an active run with two checkpoints and a result."""
    record = cluster.create_run_record()
    layout = RunLayout(record.run)
    cluster.data.write(layout.record, record.model_dump_json().encode())
    cluster.data.write(f"{layout.checkpoints}checkpoint-9/model.bin", b"x" * 1500)
    cluster.data.write(f"{layout.checkpoints}checkpoint-10/model.bin", b"x" * 1500)
    cluster.data.write(f"{layout.checkpoints}checkpoint-10/optimizer.bin", b"x" * 500)
    cluster.data.write(f"{layout.results}line.json", b"{}")
    return record


def ended(seconds_ago: float) -> Outcome:
    return Outcome(state="succeeded", reason="done", attempts=1, ended_at=time.time() - seconds_ago)


def test_status_lists_checkpoints_and_results_of_a_custom_job(cluster: clusters.Cluster, record: RunRecord) -> None:
    lines = format_status(read_status(Cluster(cluster.stack, REGION), None), cluster.stack)
    assert f"2 checkpoints (3.5 kB) in s3://{cluster.data.name}/{RunLayout(record.run).checkpoints}:" in lines
    (newest,) = (line for line in lines if line.startswith("  checkpoint-10  2.0 kB in 2 files, "))
    assert newest.endswith(" ago")
    assert any(line.startswith("  line.json  2 bytes in 1 file, ") for line in lines)


def test_status_lists_the_last_five_checkpoints(cluster: clusters.Cluster, record: RunRecord) -> None:
    for number in range(20, 26):
        cluster.data.write(f"{RunLayout(record.run).checkpoints}checkpoint-{number}/model.bin", b"x")
    lines = format_status(read_status(Cluster(cluster.stack, REGION), None), cluster.stack)
    listed = [line.split()[0] for line in lines if line.startswith("  checkpoint-")]
    assert listed == [f"checkpoint-{number}" for number in range(21, 26)]
    assert any(line.startswith("8 checkpoints (3.5 kB)") and line.endswith(", the last 5:") for line in lines)


def test_results_json_lists_checkpoints_and_results(
    cluster: clusters.Cluster, record: RunRecord, tmp_path: Path
) -> None:
    completed = run_command("results", "--stack", cluster.stack, "--to", str(tmp_path), "--json")
    assert completed.returncode == 0, completed.stderr
    downloaded = json.loads(completed.stdout)
    assert [item["name"] for item in downloaded["checkpoints"]] == ["checkpoint-9", "checkpoint-10"]
    assert [(item["name"], item["size_bytes"], item["files"]) for item in downloaded["results"]] == [
        ("line.json", 2, 1)
    ]


def test_results_of_an_ended_run_have_the_time_until_which_they_are_readable(
    cluster: clusters.Cluster, record: RunRecord
) -> None:
    clusters.add_archive_rule(cluster.data.name, days=7)
    outcome = ended(86400.0)
    saved = list_saved(Cluster(cluster.stack, REGION), record, outcome)
    assert saved.readable_until == outcome.ended_at + 7 * 86400
    until = format_time(saved.readable_until)
    assert format_saved(saved)[-1].startswith(f"results and newest checkpoint are not archived before {until}")


def test_end_of_the_lock_and_its_error_are_shown(cluster: clusters.Cluster, record: RunRecord) -> None:
    until = time.time() + 86400
    locked = ended(1.0).model_copy(update={"results_locked_until": until})
    failed = ended(1.0).model_copy(update={"results_lock_error": "AccessDenied"})

    def last_line(outcome: Outcome) -> str:
        return format_saved(list_saved(Cluster(cluster.stack, REGION), record, outcome))[-1]

    assert last_line(locked).startswith(f"results are locked until {format_time(until)}")
    assert last_line(failed).startswith("results are not locked")
    assert "AccessDenied" in last_line(failed)


def test_bucket_without_archive_rule_has_no_such_time(cluster: clusters.Cluster, record: RunRecord) -> None:
    assert list_saved(Cluster(cluster.stack, REGION), record, ended(1.0)).readable_until is None


def test_archived_checkpoint_is_marked(cluster: clusters.Cluster, record: RunRecord) -> None:
    key = f"{RunLayout(record.run).checkpoints}checkpoint-10/model.bin"
    client("s3", REGION).put_object(Bucket=cluster.data.name, Key=key, Body=b"x", StorageClass="DEEP_ARCHIVE")
    lines = format_saved(list_saved(Cluster(cluster.stack, REGION), record, None))
    assert lines[2].endswith("ago, archived: restore it before use")
