"""The story of a deployment, read back from the account in which it stands."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.timeline import Story, tell
from tests.clusters import Cluster
from tests.conftest import REGION
from tests.metrics import metric
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, chunk_key, chunk_prefix
from trainyard.models.manifest import Manifest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def deployment(account: EmulatedAws) -> Deployment:
    return up(ROOT / "stacks/Pulumi.local.yaml", "story", ROOT, account=Adapter(REGION, run_commands=False))


@pytest.fixture
def cluster(deployment: Deployment) -> Cluster:
    data, staging = (Bucket(str(deployment.exports[f"{name}_bucket"]), REGION) for name in ("data", "staging"))
    return Cluster("story", Manifest.model_validate_json(staging.read(MANIFEST)), data, staging)


def told(deployment: Deployment, account: EmulatedAws, *, trainer: bool = True) -> Story:
    story = Story()
    tell(story, deployment, account.instances(), REGION, time.time(), trainer=trainer)
    return story


def test_before_any_run_there_are_resources_only(deployment: Deployment, account: EmulatedAws) -> None:
    story = told(deployment, account)
    assert {one.name for one in story.resources} == {one.name for one in deployment.standing}
    assert (story.nodes, story.metrics) == ([], [])


def test_nodes_and_metrics_are_those_of_the_current_run(
    deployment: Deployment, cluster: Cluster, account: EmulatedAws
) -> None:
    """Without the program's exports, as after an `up` that failed."""
    record = cluster.record()
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    cluster.head_is_ready()
    cluster.agent(record.run, "i-1", "workers_up", 1)
    chunk = chunk_key(chunk_prefix(RunLayout(record.run).metrics, "i-1", "0001", "metrics"), 0)
    cluster.data.write(chunk, metric(1, 5.0).model_dump_json().encode())
    story = told(replace(deployment, exports={}), account)
    assert [(node.role, node.spans[-1].name) for node in story.nodes] == [("head", "serving"), ("worker", "working")]
    assert [line.loss for line in story.metrics or []] == [5.0]
    assert told(deployment, account, trainer=False).metrics is None
