"""Status, logs and results of a run, and the command stop, also when the stack is not deployed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import boto3
import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.manifests import HEALTHY_MEASUREMENTS, MANIFEST
from tests.metrics import metric
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.lease import put_lease
from trainyard.errors import InputError
from trainyard.models.health_check import HealthCheckResult, NodeFault, NodeResult
from trainyard.models.layout import CURRENT_RUN, RunLayout, attempt_source, chunk_key, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.operations import runs
from trainyard.operations.cluster import Cluster
from trainyard.operations.run_record import create_run_record
from trainyard.operations.status import format_status, read_status
from trainyard.times import format_time


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return clusters.create_cluster(REGION)


def test_record_has_the_image_of_each_group() -> None:
    (group,) = MANIFEST.groups
    manifest = MANIFEST.model_copy(update={"groups": (group.model_copy(update={"image": "ami-0123456789abcdef0"}),)})
    assert create_run_record(manifest, 1.0).images == {"workers": "ami-0123456789abcdef0"}
    assert manifest.digest() == MANIFEST.digest()  # a changed image does not end a run


def test_run_continues_with_another_placement_group() -> None:
    """The stack has its own one again when the held capacity of `trainyard reserve` has ended with the run."""
    (group,) = MANIFEST.groups
    held = group.model_copy(update={"placement_group_arn": "arn:aws:ec2:us-east-1:123456789012:placement-group/held"})
    assert MANIFEST.model_copy(update={"groups": (held,)}).digest() == MANIFEST.digest()


def test_head_is_no_part_of_a_run() -> None:
    other = MANIFEST.model_copy(update={"head_autoscaling_group": "head-2"})
    for digest in (Manifest.digest, Manifest.node_digest, Manifest.instance_digest):
        assert digest(other) == digest(MANIFEST)


def connect(cluster: clusters.Cluster) -> Cluster:
    return Cluster(cluster.stack, REGION)


def download_results(
    cluster: clusters.Cluster, run: str | None, folder: Path, checkpoint: str | None = None
) -> runs.DownloadedResults:
    return runs.download_results(connect(cluster), run, folder, RecordingDisplay(), checkpoint)


@pytest.fixture
def record(cluster: clusters.Cluster) -> RunRecord:
    """Write a run with logs, results, a complete checkpoint and an incomplete one."""
    new_record = cluster.create_run_record()
    layout, content = RunLayout(new_record.run), new_record.model_dump_json().encode()
    cluster.data.write(layout.record, content)
    cluster.staging.write(CURRENT_RUN, content)
    for source, line in (("0001-rank0-stderr", b"bad\n"), ("0001-rank0-stdout", b"good\n")):
        cluster.data.write(chunk_key(chunk_prefix(layout.logs, "i-1", "0001", source), 0), line)
    cluster.data.write(f"{layout.results}results.json", b"{}")
    cluster.data.write(f"{layout.results}tensorboard/events", b"x")
    cluster.data.write(f"{layout.checkpoints}step-00000020/.metadata", b"x")
    cluster.data.write(f"{layout.checkpoints}step-00000040/__0_0.distcp", b"x")
    return new_record


def test_results_are_downloaded_with_their_folders(
    cluster: clusters.Cluster, record: RunRecord, tmp_path: Path
) -> None:
    downloaded = download_results(cluster, None, tmp_path)
    assert sorted(downloaded.files) == ["results.json", "tensorboard/events"]
    assert (tmp_path / "tensorboard/events").read_bytes() == b"x"


def test_new_folder_of_results_is_no_source_of_a_job(
    cluster: clusters.Cluster, record: RunRecord, tmp_path: Path
) -> None:
    download_results(cluster, None, tmp_path / "results")
    assert (tmp_path / "results/.gitignore").read_text() == "*\n"
    assert not (tmp_path / ".gitignore").exists()


def write_metrics(cluster: clusters.Cluster, run: str, losses: Iterable[tuple[int, float]]) -> None:
    """Write a metric line of step 1 for each (attempt, loss)."""
    for attempt, loss in losses:
        line = metric(1, loss, attempt=attempt)
        prefix = chunk_prefix(RunLayout(run).metrics, "i-1", "0001", attempt_source(attempt, "metrics"))
        cluster.data.write(chunk_key(prefix, 0), line.model_dump_json().encode())


def test_downloaded_metrics_have_a_line_per_step(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    write_metrics(cluster, record.run, ((1, 3.0), (2, 2.0)))  # the later attempt repeats the step
    assert "metrics.jsonl" in download_results(cluster, None, tmp_path).files
    (kept,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(kept)["loss"] == 2.0


def test_only_complete_checkpoints_are_listed(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    prefix = f"s3://{cluster.data.name}/{RunLayout(record.run).checkpoints}"
    (checkpoint,) = download_results(cluster, record.run, tmp_path).checkpoints
    assert checkpoint.uri == f"{prefix}step-00000020/"


def test_logs_are_followed_until_the_run_ends(
    cluster: clusters.Cluster, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, waits = RunLayout(record.run), iter(range(3))

    def write_during_sleep(seconds: float) -> None:
        if (wait := next(waits)) == 0:
            cluster.data.write(chunk_key(chunk_prefix(layout.logs, "i-1", "0001", "0001-rank0-stdout"), 1), b"more\n")
        if wait == 1:
            cluster.data.write(chunk_key(chunk_prefix(layout.logs, "i-1", "0001", "0001-rank0-stdout"), 2), b"last\n")
            outcome = Outcome(state="succeeded", reason="done", attempts=1, ended_at=1.0)
            cluster.data.write(layout.outcome, outcome.model_dump_json().encode())

    monkeypatch.setattr(time, "sleep", write_during_sleep)
    lines = [line for _, line in runs.read_logs(connect(cluster), None, "stdout", follow=True)]
    assert lines == ["good", "more", "last"]


def test_untagged_data_bucket_is_used_while_the_stack_is_deployed(cluster: clusters.Cluster) -> None:
    boto3.client("s3", region_name=REGION).delete_bucket_tagging(Bucket=cluster.data.name)
    assert connect(cluster).data.name == cluster.data.name


def test_logs_are_filtered_by_source(cluster: clusters.Cluster, record: RunRecord) -> None:
    assert list(runs.read_logs(connect(cluster), None, "stderr")) == [("i-1/0001/0001-rank0-stderr", "bad")]


def test_unknown_run_is_refused(cluster: clusters.Cluster, record: RunRecord) -> None:
    with pytest.raises(InputError, match=r"run = 'nothing': s3://.* has no such run"):
        read_status(connect(cluster), "nothing")


def run_command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_status_prints_json(cluster: clusters.Cluster, record: RunRecord) -> None:
    completed = run_command("status", "--stack", cluster.stack, "--json")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["record"]["run"] == record.run


def test_status_with_wait_fails_when_the_run_fails_before_its_start(
    cluster: clusters.Cluster, record: RunRecord
) -> None:
    cluster.write_playbook_event(record.run, "i-1", "started")
    outcome = Outcome(state="failed", reason="no mirror", attempts=0, ended_at=1.0, launch_failed=True)
    cluster.data.write(RunLayout(record.run).outcome, outcome.model_dump_json().encode())
    completed = run_command("status", "--stack", cluster.stack, "--wait")
    assert completed.returncode == 1
    assert "node playbook started" in completed.stderr
    assert "the job failed: no mirror" in completed.stderr


def test_stack_without_data_bucket_is_refused(account: EmulatedAws) -> None:
    completed = run_command("status", "--stack", "never")
    assert completed.returncode == 2
    assert "--stack = 'never': the stack has no data bucket in us-east-1" in completed.stderr


def test_launcher_works_from_any_folder(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    launcher = Path(__file__).parents[3] / "infra/launcher"
    completed = subprocess.run(
        [str(launcher), "status", "--stack", cluster.stack],
        cwd=tmp_path,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert f"run {record.run}: running" in completed.stdout


def test_source_that_is_not_a_regular_expression_is_refused(cluster: clusters.Cluster, record: RunRecord) -> None:
    with pytest.raises(InputError, match=r"--source = '\(': not a regular expression"):
        list(runs.read_logs(connect(cluster), None, "("))


def test_results_folder_that_is_a_file_is_refused(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--to = .*it exists and is not a folder"):
        download_results(cluster, None, tmp_path / "file")


def test_metrics_of_an_active_run_are_downloaded(cluster: clusters.Cluster, tmp_path: Path) -> None:
    new_record = cluster.create_run_record()
    cluster.data.write(RunLayout(new_record.run).record, new_record.model_dump_json().encode())
    write_metrics(cluster, new_record.run, ((1, 3.0),))
    assert download_results(cluster, new_record.run, tmp_path / "new").files == ("metrics.jsonl",)
    assert (tmp_path / "new/metrics.jsonl").exists()


def test_status_contains_deadlines_and_groups(cluster: clusters.Cluster) -> None:
    end_time = time.time() + 30 * 60
    cluster.add_group("spot", nodes=3, market="spot", capacity_end_time=end_time)
    new_record = cluster.create_run_record(created=time.time() - 120, minutes=25.0)
    for bucket, key in ((cluster.data, RunLayout(new_record.run).record), (cluster.staging, CURRENT_RUN)):
        bucket.write(key, new_record.model_dump_json().encode())
    nodes = cluster.launch_instances(2)
    put_lease(REGION, [cluster.group], new_record.created + 600)
    status = read_status(connect(cluster), None)
    assert status.lease_end_time == pytest.approx(new_record.created + 600, abs=1.0)
    assert 120 <= status.elapsed_seconds < 180
    first, spot = status.groups
    assert (first.market, sorted(first.nodes), first.nodes_in_manifest) == ("on-demand", sorted(nodes), 2)
    assert (spot.market, spot.nodes, spot.nodes_in_manifest, spot.capacity_end_time) == ("spot", (), 3, end_time)
    lines = format_status(status, cluster.stack)
    launch_time, deadline = format_time(new_record.created), format_time(new_record.deadline)
    assert lines[1] == f"launched {launch_time}, 2 min ago; capacity end {deadline}"
    assert lines[2].startswith(f"lease until {format_time(status.lease_end_time or 0.0)}")
    assert f"group spot: 0 of 3 x c7i.xlarge, spot, until {format_time(end_time)}" in lines


def test_status_names_unhealthy_nodes_and_a_smaller_size(cluster: clusters.Cluster) -> None:
    record = cluster.create_run_record()
    for bucket, key in ((cluster.data, RunLayout(record.run).record), (cluster.staging, CURRENT_RUN)):
        bucket.write(key, record.model_dump_json().encode())
    healthy, unhealthy = cluster.launch_instances(2)
    control = Control(attempt=2, nodes=(healthy,), unhealthy_nodes=(unhealthy,))
    cluster.data.write(RunLayout(record.run).control, control.model_dump_json().encode())
    lines = format_status(read_status(connect(cluster), None), cluster.stack)
    assert any(line.endswith(f"; {unhealthy} is marked unhealthy: no attempt uses it") for line in lines)
    assert f"attempt 2 on {healthy}: 1 of 2 nodes until the others are ready (trainyard why)" in lines


def test_status_of_a_run_that_waits_for_nodes(cluster: clusters.Cluster, record: RunRecord) -> None:
    control = Control(attempt=1, nodes=("i-1", "i-2"), waiting_since=60.0)
    cluster.data.write(RunLayout(record.run).control, control.model_dump_json().encode())
    lines = format_status(read_status(connect(cluster), None), cluster.stack)
    since = format_time(60.0)
    assert f"attempt 1 on i-1, i-2: ended; the next attempt has not started since {since} (trainyard why)" in lines


def test_status_contains_the_last_health_check_by_node(cluster: clusters.Cluster, record: RunRecord) -> None:
    hung = NodeFault(kind="hung", text="process 1 did not complete: multiply matrices")
    nodes = (NodeResult(node="i-1", measurements=HEALTHY_MEASUREMENTS), NodeResult(node="i-2", faults=(hung,)))
    result = HealthCheckResult(number=1, ended_at=1.0, seconds=21.0, nodes=nodes, decision="repeat", reason="i-2 hung")
    cluster.data.write(RunLayout(record.run).latest_health_check, result.model_dump_json().encode())
    status = read_status(connect(cluster), None)
    assert status.health_check == result
    lines = format_status(status, "local")
    first = lines.index("health check 1, 21 s: repeat, i-2 hung")
    assert lines[first : first + 3] == [
        "health check 1, 21 s: repeat, i-2 hung",
        "  i-1: 8 x NVIDIA A100-SXM4-40GB, driver 580.126.09, CUDA 13.2, NCCL 2.28.3, torch 2.15.0, Libfabric (efa), "
        "4 EFA devices, matmul 245 TFLOP/s, all-reduce within the node 231 GB/s, all-reduce over all nodes 76.4 GB/s",
        "  i-2: failed, process 1 did not complete: multiply matrices",
    ]


def test_status_of_an_earlier_run_has_no_groups(cluster: clusters.Cluster, record: RunRecord) -> None:
    earlier = cluster.create_run_record()
    cluster.data.write(RunLayout(earlier.run).record, earlier.model_dump_json().encode())
    outcome = Outcome(state="succeeded", reason="done", attempts=1, ended_at=earlier.created + 90)
    cluster.data.write(RunLayout(earlier.run).outcome, outcome.model_dump_json().encode())
    status = read_status(connect(cluster), earlier.run)
    assert (len(status.groups), status.lease_end_time) == (0, None)
    assert status.elapsed_seconds == pytest.approx(90)


def test_objects_of_nodes_do_not_become_the_newest_run(cluster: clusters.Cluster, record: RunRecord) -> None:
    for key in ("events/i-1/0001/agent-00000000.jsonl", "metrics.json", "logs/x"):
        cluster.data.write(f"runs/99999999-999999-hostile-0000/{key}", b"{}")
    cluster.data.write(RunLayout("99999999-999999-copied-0000").record, record.model_dump_json().encode())
    newest = connect(cluster).newest_run()
    assert newest is not None
    assert newest.run == record.run


def test_status_ignores_invalid_metrics_and_events(cluster: clusters.Cluster, record: RunRecord) -> None:
    layout = RunLayout(record.run)
    cluster.data.write(f"{layout.metrics}i-1/0001/0001-metrics-00000000.jsonl", b'{"step": -1}\n')
    cluster.data.write(f"{layout.events}i-1/0001/agent-00000000.jsonl", b"[]\n")
    assert read_status(connect(cluster), record.run).metric is None


def test_stop_tags_old_objects(cluster: clusters.Cluster, record: RunRecord) -> None:
    clusters.add_archive_rule(cluster.data.name, days=90)
    cluster.data.write(f"{RunLayout(record.run).checkpoints}step-00000030/.metadata", b"x")
    completed = run_command("stop", "--stack", cluster.stack, "--json")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout) == {"terminated": []}
    assert f"tagged for S3 Glacier Deep Archive: 1 older checkpoint of {record.run} (1 object)" in completed.stderr


def test_stop_of_a_stack_that_is_not_deployed_needs_its_manifest_uri(account: EmulatedAws) -> None:
    completed = run_command("stop", "--stack", "never")
    assert completed.returncode == 2
    assert "--stack = 'never': the stack is not deployed in us-east-1" in completed.stderr
    again = run_command("stop", "--stack", "never", "--manifest", "s3://trainyard-staging-gone/manifest.json")
    assert (again.returncode, again.stdout) == (0, "0 nodes terminated\n")
