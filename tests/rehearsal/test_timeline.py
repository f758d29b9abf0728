"""The timeline is read from the account of a deployment."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.timeline import Span, Timeline, fill_timeline, node_timelines
from tests.clusters import Cluster
from tests.conftest import REGION
from tests.metrics import metric
from tests.rehearsal.aws.instances import example_record
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, chunk_key, chunk_prefix
from trainyard.models.manifest import Manifest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def deployment(account: EmulatedAws) -> Deployment:
    """A deployment of the stack local without local commands."""
    return up(ROOT / "stacks/Pulumi.local.yaml", "timeline", ROOT, account=EmulatedAccount(REGION, run_commands=False))


@pytest.fixture
def cluster(deployment: Deployment) -> Cluster:
    """The cluster of the deployment."""
    data, staging = (Bucket(str(deployment.exports[f"{name}_bucket"]), REGION) for name in ("data", "staging"))
    return Cluster("timeline", Manifest.model_validate_json(staging.read(MANIFEST)), data, staging)


def read_timeline(deployment: Deployment, account: EmulatedAws, *, trainer: bool = True) -> Timeline:
    """Return the timeline of the deployment."""
    timeline = Timeline()
    instances = [each for each in account.instances() if each.tags.get(tags.STACK) == "trainyard/timeline"]
    fill_timeline(timeline, deployment, instances, REGION, time.time(), trainer=trainer)
    return timeline


def test_timeline_has_no_metrics_before_the_first_run(deployment: Deployment, account: EmulatedAws) -> None:
    timeline = read_timeline(deployment, account)
    assert {item.name for item in timeline.resources} == {item.name for item in deployment.existing_resources}
    assert timeline.metrics == []


def test_timeline_has_instances_without_an_event() -> None:
    records = [
        example_record(id="i-1", launch_time=1, autoscaling_group="workers", state="terminated", terminated_time=3),
        example_record(id="i-2", launch_time=2, autoscaling_group="head-1", tags={"trainyard:role": "head"}),
    ]
    timelines = [(node.role, node.instance, *node.spans) for node in node_timelines([], records, 9)]
    assert timelines == [
        ("worker", "i-1", Span(name="terminated before its first event", start=1, end=3)),
        ("head", "i-2", Span(name="booting", start=2, end=9)),
    ]


def test_timeline_has_nodes_and_metrics_of_the_current_run(
    deployment: Deployment, cluster: Cluster, account: EmulatedAws
) -> None:
    """It does not need the stack outputs, which are missing after a failed `up`."""
    record = cluster.create_run_record()
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    cluster.write_head_ready_events()
    cluster.write_agent_event(record.run, "i-1", "workers_up", 1)
    chunk = chunk_key(chunk_prefix(RunLayout(record.run).metrics, "i-1", "0001", "metrics"), 0)
    cluster.data.write(chunk, metric(1, 5.0).model_dump_json().encode())
    timeline = read_timeline(replace(deployment, exports={}), account)
    nodes = sorted((node.role, node.spans[-1].name) for node in timeline.nodes)
    assert nodes == [("head", "serving"), ("worker", "working")]
    assert [line.loss for line in timeline.metrics or []] == [5.0]
    assert read_timeline(deployment, account, trainer=False).metrics is None
