"""API calls of a launch against the number of nodes, counted in the journal of the emulated AWS.

The Pulumi program creates the cluster; its nodes do not boot. This benchmark writes the objects that their agents would
write to S3 during startup, with a separate access key, so that only calls of the launch are counted. Startup has a
fixed number of polls for any number of nodes, since nodes configure themselves in parallel.
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

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Sizes
from benchmarks.preview import ROOT, config_of
from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.workspace import aws_environment
from trainyard.aws import clients
from trainyard.models.dataset import INDEX
from trainyard.models.events import AgentEvent, NodeEvent, PlaybookEvent, ServiceEvent
from trainyard.models.layout import HEAD_EVENTS, RunLayout, attempt_source, chunk_key, chunk_prefix, split_s3_uri
from trainyard.models.metrics import MetricLine
from trainyard.models.run import Outcome
from trainyard.operations import startup as startup_module
from trainyard.operations.cluster import Cluster
from trainyard.operations.head import find_head
from trainyard.operations.launch import Launch

SIZES = (2, 64, 512)
STACK = "local"
POLLS = 30


class NullDisplay:
    """A display without output."""

    def line(self, subject: str, text: str) -> None:
        """Discard the line."""

    def detail(self, subject: str, text: str) -> None:
        """Discard the line."""


class SimulatedNodes:
    """Writes the events and metrics that head and workers would write to S3."""

    def __init__(self, aws: EmulatedAws, cluster: Cluster) -> None:
        assert cluster.staging is not None
        # Not the operator's key: only calls with that key are counted.
        self._s3 = aws.session("adapter").client("s3", endpoint_url=aws.endpoint)
        self._cluster, self._manifest = cluster, cluster.manifest
        self._staging, self._data = cluster.staging.name, cluster.data.name
        self._written: Counter[str] = Counter()

    def write_dataset(self) -> None:
        """Write the dataset's index, so that the launch does not upload a dataset."""
        key = split_s3_uri(str(self._manifest.job.data_uri))[1] + INDEX
        self._s3.put_object(Bucket=self._data, Key=key, Body=b"{}")

    def report_head_ready(self) -> None:
        """Write the event of the head's controller."""
        head = find_head(self._cluster)
        assert head is not None, "the program has created it"
        fields = {"service": "controller", "address": "10.0.0.1"}
        event = ServiceEvent.model_validate({**_stamp(head, "head"), **fields})
        self._write(self._staging, HEAD_EVENTS, event)

    def report_playbook_status(self, run: str, nodes: Sequence[str], status: str) -> None:
        """Write an event of each node's playbook."""
        for node in nodes:
            event = PlaybookEvent.model_validate({**_stamp(node, "worker"), "status": status})
            self._write(self._data, RunLayout(run).events, event)

    def report_agent_state(self, run: str, nodes: Sequence[str], state: str) -> None:
        """Write an event of each node's agent."""
        for node in nodes:
            values = {"run": run, "attempt": 1, "state": state, "address": "10.0.0.1"}
            self._write(self._data, RunLayout(run).events, AgentEvent.model_validate(_stamp(node, "worker") | values))

    def report_first_step(self, run: str, node: str) -> None:
        """Write the metrics of the first training step."""
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


class PolledCluster(Cluster):
    """A cluster whose simulated nodes act whenever the launch polls the outcome of the run."""

    def __init__(self, stack: str, region: str, act: Callable[[int], None]) -> None:
        super().__init__(stack, region)
        self._act, self._polls = act, count(1)

    def outcome(self, run: str) -> Outcome | None:
        self._act(next(self._polls))
        return super().outcome(run)


def launch_calls(aws: EmulatedAws, nodes: int, polls: int) -> Counter[str]:
    """Return the number of calls by `service:Operation` of one launch whose startup lasts `polls` polls."""
    stack = f"nodes-{nodes}"
    up(config_of(STACK, nodes), stack, ROOT, account=EmulatedAccount(aws.region, run_commands=False))
    cluster = Cluster(stack, aws.region)
    simulated = SimulatedNodes(aws, cluster)
    simulated.write_dataset()
    simulated.report_head_ready()

    def act(poll: int) -> None:
        run = launch.record.run
        if poll not in (polls // 5, polls // 2, polls - 1):
            return
        # From the emulated account directly, not by API calls of the launch.
        group_names = [group.autoscaling_group for group in cluster.manifest.groups]
        launched = [instance.id for instance in aws.instances() if instance.autoscaling_group in group_names]
        if poll == polls // 5:
            simulated.report_playbook_status(run, launched, "started")
        elif poll == polls // 2:
            simulated.report_playbook_status(run, launched, "ok")
            simulated.report_agent_state(run, launched, "ready")
        elif poll == polls - 1:
            simulated.report_agent_state(run, launched, "workers_up")
            simulated.report_first_step(run, launched[0])

    before = len(aws.journal())
    launch = Launch(PolledCluster(stack, aws.region, act), NullDisplay())
    with patch.object(startup_module, "POLL_SECONDS", 0.0):
        result = launch.start()
    assert len(result.nodes) == nodes
    calls = [entry for entry in aws.journal()[before:] if entry.access_key == aws.secrets.operator.id]
    return Counter(f"{entry.service}:{entry.operation}" for entry in calls)


def measure(sizes: Sequence[int] = SIZES, polls: int = POLLS) -> dict[str, Any]:
    """Count the calls of each size in a new account.

    `ratio`: calls per node of the last size divided by those of the first.
    """
    calls_by_size: dict[int, Counter[str]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedAws.start(Path(folder)) as aws,
        aws_environment(aws.environment()),
    ):
        clients.client.cache_clear()
        try:
            for nodes in sizes:
                calls_by_size[nodes] = launch_calls(aws, nodes, polls)
        finally:
            clients.client.cache_clear()
    per_node = {nodes: calls.total() / nodes for nodes, calls in calls_by_size.items()}
    return {
        "stack": STACK,
        "polls": polls,
        "calls": {str(nodes): calls.total() for nodes, calls in calls_by_size.items()},
        "calls_per_node": {str(nodes): round(value, 3) for nodes, value in per_node.items()},
        "operations": {str(nodes): dict(calls.most_common()) for nodes, calls in calls_by_size.items()},
        "ratio": round(per_node[sizes[-1]] / per_node[sizes[0]], 4),
    }


def main(
    as_json: AsJson = False,
    sizes: Sizes = None,
    polls: Annotated[int, typer.Option("--polls", min=10, help="Polls that startup lasts.")] = POLLS,
) -> None:
    """API calls of a launch for each number of nodes."""
    results = measure(sizes or SIZES, polls)
    if as_json:
        print(json.dumps(results))
        return
    for nodes, total in results["calls"].items():
        operations = ", ".join(f"{number} {name}" for name, number in results["operations"][nodes].items())
        print(f"{nodes:>5} nodes: {total} calls, {results['calls_per_node'][nodes]} per node: {operations}")
    print(f"ratio {results['ratio']}")


def _stamp(node: str, role: str) -> dict[str, Any]:
    return {"time": time.time(), "instance": node, "role": role, "boot": "0001"}


if __name__ == "__main__":
    typer.run(main)
