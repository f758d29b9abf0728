"""API calls of a launch against the number of nodes, counted in the journal of the emulated AWS.

The cluster is made by the program itself; its nodes boot nothing. What their agents would write to S3 while they come
up is written here, under an access key of its own, so that only the launch's calls are counted. A bring-up lasts a
fixed number of polls, whatever the number of nodes, as it does where nodes configure themselves side by side.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import boto3
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a file, it finds the rooms
from benchmarks.options import AsJson, Sizes
from benchmarks.preview import ROOT, config_of
from rehearsal.adapter.account import Adapter
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import OPERATOR_KEY, EmulatedAws
from rehearsal.workspace import environment
from trainyard.aws import s3 as objects
from trainyard.models.dataset import INDEX
from trainyard.models.events import AgentEvent, NodeEvent, PlayEvent, ServiceEvent
from trainyard.models.layout import HEAD_EVENTS, RunLayout, attempt_source, chunk_key, chunk_prefix, split_s3_uri
from trainyard.models.metrics import MetricLine
from trainyard.models.run import Outcome
from trainyard.operations import startup as bringup
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import Launch

SIZES = (2, 64, 512)
STACK = "local"
POLLS = 30
NODES_KEY = "AKIABENCHMARKNODES00"


class Silent:
    """A display that shows nothing."""

    def line(self, subject: str, text: str) -> None:
        """Not shown."""

    def detail(self, subject: str, text: str) -> None:
        """Not shown."""


class Nodes:
    """What head and workers would write."""

    def __init__(self, aws: EmulatedAws, cluster: Cluster) -> None:
        assert cluster.staging is not None
        self._s3 = boto3.client(
            "s3",
            endpoint_url=aws.endpoint,
            region_name=aws.region,
            aws_access_key_id=NODES_KEY,
            aws_secret_access_key="rehearsal",  # noqa: S106 (the emulated account knows no secrets)
        )
        self._manifest, self._staging, self._data = cluster.manifest, cluster.staging.name, cluster.data.name
        self._written: Counter[str] = Counter()

    def dataset_is_there(self) -> None:
        """Uploading one costs the same for any number of nodes."""
        key = split_s3_uri(self._manifest.job.data_uri)[1] + INDEX
        self._s3.put_object(Bucket=self._data, Key=key, Body=b"{}")

    def head_is_ready(self) -> None:
        head = self._manifest.head
        for service in ("rendezvous", "controller"):
            stamp = _stamp(head.instance, "head")
            event = ServiceEvent.model_validate({**stamp, "service": service, "address": head.address})
            self._write(self._staging, HEAD_EVENTS, event)

    def plays(self, run: str, nodes: Sequence[str], status: str) -> None:
        for node in nodes:
            event = PlayEvent.model_validate({**_stamp(node, "worker"), "status": status})
            self._write(self._data, RunLayout(run).events, event)

    def agents(self, run: str, nodes: Sequence[str], state: str) -> None:
        for node in nodes:
            said = {"run": run, "attempt": 1, "state": state, "address": "10.0.0.1"}
            self._write(self._data, RunLayout(run).events, AgentEvent.model_validate(_stamp(node, "worker") | said))

    def first_step(self, run: str, node: str) -> None:
        line = MetricLine(
            time=time.time(),
            attempt=1,
            step=1,
            loss=5.0,
            learning_rate=0.001,
            gradient_norm=1.0,
            consumed=1,
            samples_per_second=1.0,
            tokens_per_second=1.0,
            step_seconds=1.0,
            data_seconds=0.0,
            forward_seconds=0.0,
            backward_seconds=0.0,
            optimizer_seconds=0.0,
            checkpoint_seconds=0.0,
            mfu=None,
            memory_gib=1.0,
        )
        self._put(
            self._data,
            chunk_prefix(RunLayout(run).metrics, node, "0001", attempt_source(1, "metrics")),
            line.model_dump_json(),
        )

    def _write(self, bucket: str, stream: str, event: NodeEvent) -> None:
        self._put(bucket, chunk_prefix(stream, event.instance, event.boot, "agent"), event.model_dump_json())

    def _put(self, bucket: str, prefix: str, line: str) -> None:
        self._s3.put_object(Bucket=bucket, Key=chunk_key(prefix, self._written[prefix]), Body=line.encode())
        self._written[prefix] += 1


class Polled(Cluster):
    """The cluster as the launch polls it: at each poll it asks for the run's outcome, and then the nodes act."""

    def __init__(self, stack: str, region: str, act: Callable[[int], None]) -> None:
        super().__init__(stack, region)
        self._act, self._polls = act, count(1)

    def outcome(self, run: str) -> Outcome | None:
        self._act(next(self._polls))
        return super().outcome(run)


def launch_calls(aws: EmulatedAws, nodes: int, polls: int) -> Counter[str]:
    """`service:Operation` -> calls of one launch whose nodes take `polls` polls to come up."""
    stack = f"nodes-{nodes}"
    up(config_of(STACK, nodes), stack, ROOT, account=Adapter(aws.region, run_commands=False))
    cluster = Cluster(stack, aws.region)
    actors = Nodes(aws, cluster)
    actors.dataset_is_there()
    actors.head_is_ready()

    def act(poll: int) -> None:
        run = launch.record.run
        if poll not in (polls // 5, polls // 2, polls - 1):
            return
        # From the account's own truth: no call of the launch's.
        named = [group.autoscaling_group for group in cluster.manifest.groups]
        launched = [one.id for one in aws.instances() if one.autoscaling_group in named]
        if poll == polls // 5:
            actors.plays(run, launched, "started")
        elif poll == polls // 2:
            actors.plays(run, launched, "ok")
            actors.agents(run, launched, "ready")
        elif poll == polls - 1:
            actors.agents(run, launched, "workers_up")
            actors.first_step(run, launched[0])

    before = len(aws.journal())
    launch = Launch(Polled(stack, aws.region, act), Silent())
    with patch.object(bringup, "POLL_SECONDS", 0.0):
        result = launch.go()
    assert len(result.nodes) == nodes
    calls = [entry for entry in aws.journal()[before:] if entry.access_key == OPERATOR_KEY]
    return Counter(f"{entry.service}:{entry.operation}" for entry in calls)


def measure(sizes: Sequence[int] = SIZES, polls: int = POLLS) -> dict[str, Any]:
    """Calls of each size in an account of their own; `ratio`: calls per node of the last size over the first's."""
    found: dict[int, Counter[str]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedAws.start(Path(folder)) as aws,
        environment(aws.environment()),
    ):
        objects.client.cache_clear()
        try:
            for nodes in sizes:
                found[nodes] = launch_calls(aws, nodes, polls)
        finally:
            objects.client.cache_clear()
    per_node = {nodes: calls.total() / nodes for nodes, calls in found.items()}
    return {
        "stack": STACK,
        "polls": polls,
        "calls": {str(nodes): calls.total() for nodes, calls in found.items()},
        "calls_per_node": {str(nodes): round(value, 3) for nodes, value in per_node.items()},
        "operations": {str(nodes): dict(calls.most_common()) for nodes, calls in found.items()},
        "ratio": round(per_node[sizes[-1]] / per_node[sizes[0]], 4),
    }


def main(
    as_json: AsJson = False,
    sizes: Sizes = None,
    polls: Annotated[int, typer.Option("--polls", min=10, help="Polls that a bring-up lasts.")] = POLLS,
) -> None:
    """API calls of a launch for each number of nodes."""
    found = measure(sizes or SIZES, polls)
    if as_json:
        print(json.dumps(found))
        return
    for nodes, total in found["calls"].items():
        operations = ", ".join(f"{number} {name}" for name, number in found["operations"][nodes].items())
        print(f"{nodes:>5} nodes: {total} calls, {found['calls_per_node'][nodes]} a node: {operations}")
    print(f"ratio {found['ratio']}")


def _stamp(node: str, role: str) -> dict[str, Any]:
    return {"time": time.time(), "instance": node, "role": role, "boot": "0001"}


if __name__ == "__main__":
    typer.run(main)
