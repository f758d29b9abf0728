"""What an operator asks of a run, also after the cluster has gone."""

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
from tests.manifests import WELL
from tests.metrics import metric
from trainyard.aws.lease import put_lease
from trainyard.base import InputError
from trainyard.models.health_check import CheckedNode, Fault, Verification
from trainyard.models.layout import CURRENT_RUN, RunLayout, attempt_source, chunk_key, chunk_prefix
from trainyard.models.run import Outcome, RunRecord
from trainyard.operations import runs
from trainyard.operations.cluster import Cluster
from trainyard.operations.run_record import moment
from trainyard.operations.status import in_words, status_of


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return clusters.build(REGION)


def found(cluster: clusters.Cluster) -> Cluster:
    return Cluster(cluster.stack, REGION)


@pytest.fixture
def record(cluster: clusters.Cluster) -> RunRecord:
    """A run that left logs, results and a checkpoint and a half."""
    made = cluster.record()
    layout, content = RunLayout(made.run), made.model_dump_json().encode()
    cluster.data.write(layout.record, content)
    cluster.staging.write(CURRENT_RUN, content)
    for source, line in (("0001-rank0-stderr", b"bad\n"), ("0001-rank0-stdout", b"good\n")):
        cluster.data.write(chunk_key(chunk_prefix(layout.logs, "i-1", "0001", source), 0), line)
    cluster.data.write(f"{layout.results}results.json", b"{}")
    cluster.data.write(f"{layout.results}tensorboard/events", b"x")
    cluster.data.write(f"{layout.checkpoints}step-00000020/.metadata", b"x")
    cluster.data.write(f"{layout.checkpoints}step-00000040/__0_0.distcp", b"x")
    return made


def test_results_come_home_with_their_folders(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    fetched = runs.results(found(cluster), None, tmp_path)
    assert sorted(fetched.files) == ["results.json", "tensorboard/events"]
    assert (tmp_path / "tensorboard/events").read_bytes() == b"x"


def leave_metrics(cluster: clusters.Cluster, run: str, losses: Iterable[tuple[int, float]]) -> None:
    """A line of step 1 for each (attempt, loss)."""
    for attempt, loss in losses:
        line = metric(1, loss, attempt=attempt)
        prefix = chunk_prefix(RunLayout(run).metrics, "i-1", "0001", attempt_source(attempt, "metrics"))
        cluster.data.write(chunk_key(prefix, 0), line.model_dump_json().encode())


def test_metrics_come_home_a_line_a_step(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    leave_metrics(cluster, record.run, ((1, 3.0), (2, 2.0)))  # the later attempt has made the step again
    assert "metrics.jsonl" in runs.results(found(cluster), None, tmp_path).files
    (kept,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(kept)["loss"] == 2.0


def test_only_complete_checkpoints_are_listed(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    prefix = f"s3://{cluster.data.name}/{RunLayout(record.run).checkpoints}"
    assert runs.results(found(cluster), record.run, tmp_path).checkpoints == (f"{prefix}step-00000020/",)


def test_logs_are_followed_until_the_run_is_over(
    cluster: clusters.Cluster, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, waits = RunLayout(record.run), iter(range(3))

    def meanwhile(seconds: float) -> None:
        if (wait := next(waits)) == 0:
            cluster.data.write(chunk_key(chunk_prefix(layout.logs, "i-1", "0001", "0001-rank0-stdout"), 1), b"more\n")
        if wait == 1:
            cluster.data.write(chunk_key(chunk_prefix(layout.logs, "i-1", "0001", "0001-rank0-stdout"), 2), b"last\n")
            outcome = Outcome(state="succeeded", reason="done", attempts=1, ended=1.0)
            cluster.data.write(layout.outcome, outcome.model_dump_json().encode())

    monkeypatch.setattr(time, "sleep", meanwhile)
    lines = [line for _, line in runs.logs(found(cluster), None, "stdout", follow=True)]
    assert lines == ["good", "more", "last"]


def test_bucket_that_bears_no_tag_of_ours_is_found_while_the_stack_is_up(cluster: clusters.Cluster) -> None:
    boto3.client("s3", region_name=REGION).delete_bucket_tagging(Bucket=cluster.data.name)
    assert found(cluster).data.name == cluster.data.name


def test_logs_are_chosen_by_their_source(cluster: clusters.Cluster, record: RunRecord) -> None:
    assert list(runs.logs(found(cluster), None, "stderr")) == [("i-1/0001/0001-rank0-stderr", "bad")]


def test_a_run_that_is_not_there_is_told(cluster: clusters.Cluster, record: RunRecord) -> None:
    with pytest.raises(InputError, match="--run = 'nothing': no such run in s3://"):
        status_of(found(cluster), "nothing")


def test_stop_ends_run_and_nodes_and_may_be_repeated(cluster: clusters.Cluster, record: RunRecord) -> None:
    nodes = cluster.launch(2)
    assert sorted(runs.stop(found(cluster))) == sorted(nodes)
    assert cluster.members() == []
    told = status_of(found(cluster), None).outcome
    assert told is not None
    assert told.state == "stopped"
    assert runs.stop(found(cluster)) == []


def test_stop_leaves_the_outcome_of_a_run_that_was_over(cluster: clusters.Cluster, record: RunRecord) -> None:
    outcome = Outcome(state="succeeded", reason="done", attempts=1, ended=1.0)
    cluster.data.write(RunLayout(record.run).outcome, outcome.model_dump_json().encode())
    runs.stop(found(cluster))
    assert status_of(found(cluster), None).outcome == outcome


def command(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_status_as_json(cluster: clusters.Cluster, record: RunRecord) -> None:
    done = command("status", "--stack", cluster.stack, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["record"]["run"] == record.run


def test_a_stack_that_never_was_up_is_told(account: EmulatedAws) -> None:
    done = command("status", "--stack", "never")
    assert done.returncode == 2
    assert "--stack = 'never': no data bucket of that stack in us-east-1" in done.stderr


def test_a_region_must_be_known(account: EmulatedAws) -> None:
    done = command("status", "--stack", "never", AWS_REGION="", AWS_DEFAULT_REGION="")
    assert done.returncode == 2
    assert "AWS_REGION" in done.stderr


def test_the_launcher_finds_its_python_from_any_folder(
    cluster: clusters.Cluster, record: RunRecord, tmp_path: Path
) -> None:
    launcher = Path(__file__).parents[3] / "trainyard/launcher"
    done = subprocess.run(
        [str(launcher), "status", "--stack", cluster.stack],
        cwd=tmp_path,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"run {record.run}: running" in done.stdout


def test_a_source_that_is_no_expression_is_told(cluster: clusters.Cluster, record: RunRecord) -> None:
    with pytest.raises(InputError, match=r"--source = '\(': not a regular expression"):
        list(runs.logs(found(cluster), None, "("))


def test_results_do_not_go_into_a_file(cluster: clusters.Cluster, record: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--to = .*it is there and is no folder"):
        runs.results(found(cluster), None, tmp_path / "file")


def test_metrics_come_home_of_a_run_that_has_no_results_yet(cluster: clusters.Cluster, tmp_path: Path) -> None:
    made = cluster.record()
    cluster.data.write(RunLayout(made.run).record, made.model_dump_json().encode())
    leave_metrics(cluster, made.run, ((1, 3.0),))
    assert runs.results(found(cluster), made.run, tmp_path / "new").files == ("metrics.jsonl",)
    assert (tmp_path / "new/metrics.jsonl").exists()


def test_status_tells_deadlines_and_groups(cluster: clusters.Cluster) -> None:
    ends = time.time() + 30 * 60
    cluster.add_group("spot", nodes=3, market="spot", ends=ends)
    made = cluster.record(created=time.time() - 120, minutes=25.0)
    for bucket, key in ((cluster.data, RunLayout(made.run).record), (cluster.staging, CURRENT_RUN)):
        bucket.write(key, made.model_dump_json().encode())
    nodes = cluster.launch(2)
    put_lease(cluster.autoscaling, [cluster.group], made.created + 600)
    told = status_of(found(cluster), None)
    assert told.lease_ends == pytest.approx(made.created + 600, abs=1.0)
    assert 120 <= told.elapsed_seconds < 180
    first, spot = told.groups
    assert (first.market, sorted(first.nodes), first.wanted) == ("on-demand", sorted(nodes), 2)
    assert (spot.market, spot.nodes, spot.wanted, spot.ends) == ("spot", (), 3, ends)
    lines = in_words(told)
    assert lines[1] == f"launched {moment(made.created)}, 2 minutes ago; its capacity ends {moment(made.deadline)}"
    assert lines[2].startswith(f"lease until {moment(told.lease_ends or 0.0)}")
    assert f"group spot: 0 of 3 x c7i.xlarge, spot, until {moment(ends)}" in lines


def test_status_tells_the_last_check_node_by_node(cluster: clusters.Cluster, record: RunRecord) -> None:
    hung = Fault(kind="hung", text="process 1 did not end: multiply matrices")
    nodes = (CheckedNode(node="i-1", measured=WELL), CheckedNode(node="i-2", faults=(hung,)))
    check = Verification(number=1, ended=1.0, seconds=21.0, nodes=nodes, verdict="repeat", reason="i-2 hung")
    cluster.data.write(RunLayout(record.run).verification, check.model_dump_json().encode())
    told = status_of(found(cluster), None)
    assert told.verification == check
    assert in_words(told)[-3:] == [
        "check 1 of the nodes, 21 s: repeat, i-2 hung",
        "  i-1: 8 x NVIDIA A100-SXM4-40GB, driver 580.126.09, CUDA 13.2, NCCL 2.28.3, torch 2.15.0, Libfabric (efa), "
        "4 EFA devices, matmul 245 TFLOP/s, all-reduce in the node 231 GB/s, over all nodes 76.4 GB/s",
        "  i-2: failed, process 1 did not end: multiply matrices",
    ]


def test_status_of_an_earlier_run_names_no_nodes(cluster: clusters.Cluster, record: RunRecord) -> None:
    earlier = cluster.record()
    cluster.data.write(RunLayout(earlier.run).record, earlier.model_dump_json().encode())
    outcome = Outcome(state="succeeded", reason="done", attempts=1, ended=earlier.created + 90)
    cluster.data.write(RunLayout(earlier.run).outcome, outcome.model_dump_json().encode())
    told = status_of(found(cluster), earlier.run)
    assert (len(told.groups), told.lease_ends) == (0, None)
    assert told.elapsed_seconds == pytest.approx(90)


def test_stop_marks_what_is_old(cluster: clusters.Cluster, record: RunRecord) -> None:
    prefix = RunLayout(record.run).checkpoints
    cluster.data.write(f"{prefix}step-00000030/.metadata", b"x")
    done = command("stop", "--stack", cluster.stack, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"ended": []}
    assert "old objects marked for Deep Archive: 1" in done.stderr


def test_a_person_who_mistypes_the_stack_is_told_and_a_second_destroy_is_not(account: EmulatedAws) -> None:
    done = command("stop", "--stack", "never")
    assert done.returncode == 2
    assert "--stack = 'never': the stack is not up in us-east-1" in done.stderr
    again = command("stop", "--stack", "never", "--manifest", "s3://trainyard-staging-gone/manifest.json")
    assert (again.returncode, again.stdout) == (0, "0 nodes ended\n")
