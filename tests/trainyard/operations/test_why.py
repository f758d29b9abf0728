"""`trainyard why`: the evidence and the decisions on failed attempts."""

import time

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.metrics import metric
from trainyard.models.decision import AttemptDecision, AttemptStart
from trainyard.models.events import RankFailure
from trainyard.models.layout import RunLayout, chunk_key, chunk_prefix
from trainyard.models.replaced_nodes import ReplacedNode, ReplacedNodes
from trainyard.models.run import Outcome
from trainyard.node.controller.failure_analysis import AttemptFailure, decide
from trainyard.operations.cluster import Cluster
from trainyard.operations.why import RunExplanation, explain_run, format_explanation

FAILURE = RankFailure(rank=2, local_rank=0, time=1.0, exitcode=1, message="ValueError: bad", traceback="Traceback")


def decisions() -> list[AttemptDecision]:
    first = decide(
        AttemptFailure(attempt=1, time=10.0, nodes=("i-1", "i-2"), silent={"i-2": "i-2 has sent no heartbeat"}), ()
    )
    second = AttemptFailure(attempt=2, time=20.0, nodes=("i-1", "i-3"), failures=[("i-3", FAILURE)])
    return [first, decide(second, [first])]


def test_explanation_has_evidence_and_decision_of_each_attempt() -> None:
    lines = format_explanation(RunExplanation(run="r", decisions=tuple(decisions()), health_checks=(), outcome=None))
    assert lines[0] == "run r"
    assert [line.strip() for line in lines if line.startswith("  ")] == [
        "unresponsive: i-2 has sent no heartbeat",
        "decision: fault of a node, which does not count against the job; next: i-2: replace, another attempt",
        "rank: rank 2 (local rank 0 of i-3): ValueError: bad",
        "decision: rank 2 (local rank 0 of i-3): ValueError: bad; next: i-3 runs other ranks, another attempt",
    ]


def test_explanation_is_read_from_the_data_bucket(account: EmulatedAws) -> None:
    nodes = clusters.create_cluster(REGION)
    record, cluster = nodes.create_run_record(), Cluster(nodes.stack, REGION)
    layout = RunLayout(record.run)
    nodes.data.write(layout.record, record.model_dump_json().encode())
    for decision in decisions():
        nodes.data.write(layout.decision(decision.attempt), decision.model_dump_json().encode())
    start = AttemptStart(attempt=1, time=5.0, nodes=("i-1", "i-2"), run_nodes=2)
    nodes.data.write(layout.attempt_start(1), start.model_dump_json().encode())
    outcome = Outcome(state="failed", reason="it failed", attempts=2, ended_at=30.0, failure=FAILURE)
    nodes.data.write(layout.outcome, outcome.model_dump_json().encode())
    explanation = explain_run(cluster, record.run)
    assert list(explanation.decisions) == decisions()
    assert explanation.starts == (start,)
    assert format_explanation(explanation)[-1].endswith("the job failed: it failed\nTraceback")


def test_starts_of_attempts_name_the_changed_nodes_and_the_first_step() -> None:
    starts = (
        AttemptStart(attempt=1, time=5.0, nodes=("i-1", "i-2"), run_nodes=2),
        AttemptStart(attempt=2, time=15.0, nodes=("i-1",), run_nodes=2),
        AttemptStart(attempt=3, time=25.0, nodes=("i-1", "i-3"), run_nodes=2),
    )
    steps = {1: 1, 2: 21}
    explanation = RunExplanation(
        run="r", starts=starts, first_steps=steps, decisions=tuple(decisions()[:1]), health_checks=(), outcome=None
    )
    lines = [line.partition(" attempt ")[2] for line in format_explanation(explanation) if " attempt " in line]
    assert [line for line in lines if "started" in line] == [
        "1 started on 2 nodes; i-1, i-2; its first step was 1",
        "2 started on 1 of 2 nodes; without i-2; its first step was 21",
        "3 started on 2 nodes; with i-3",
    ]
    assert lines[1] == "1 failed", "in the order of time"


def test_first_steps_are_those_of_each_attempt_also_if_they_were_repeated(account: EmulatedAws) -> None:
    nodes = clusters.create_cluster(REGION)
    record = nodes.create_run_record()
    layout = RunLayout(record.run)
    nodes.data.write(layout.record, record.model_dump_json().encode())
    steps = [(1, range(1, 21)), (2, range(1, 6)), (3, range(4, 8))]
    lines = [metric(step, attempt=attempt).model_dump_json() for attempt, numbers in steps for step in numbers]
    nodes.data.write(chunk_key(chunk_prefix(layout.metrics, "i-1", "0001", "a"), 0), "\n".join(lines).encode())
    assert explain_run(Cluster(nodes.stack, REGION), record.run).first_steps == {1: 1, 2: 1, 3: 4}


def test_start_on_the_same_nodes_with_other_ranks_is_described() -> None:
    first = AttemptStart(attempt=1, time=5.0, nodes=("i-1",), run_nodes=1)
    assert first.describe(None, None) == "attempt 1 started on 1 node; i-1"
    before = AttemptStart(attempt=1, time=5.0, nodes=("i-1", "i-2"), run_nodes=2)
    swapped = AttemptStart(attempt=2, time=6.0, nodes=("i-2", "i-1"), run_nodes=2)
    assert (
        swapped.describe(before, 7) == "attempt 2 started on 2 nodes; the nodes run other ranks; its first step was 7"
    )


def test_run_without_failures() -> None:
    assert format_explanation(RunExplanation(run="r", decisions=(), health_checks=(), outcome=None)) == [
        "run r: no attempt has failed"
    ]


def test_network_node_with_several_replaced_nodes_is_named() -> None:
    replaced = ReplacedNodes()
    for instance, network_node in (("i-1", "nn-1"), ("i-2", "nn-2"), ("i-3", "nn-1"), ("i-4", None), ("i-5", None)):
        node = ReplacedNode(instance=instance, run="r", time=time.time(), reason="x", network_node=network_node)
        replaced = replaced.add(node)
    explanation = RunExplanation(run="r", decisions=(), health_checks=(), outcome=None, replaced_nodes=replaced)
    (line,) = format_explanation(explanation)[1:]
    assert line.startswith("2 nodes of this cluster below the network node nn-1 were replaced in the last 7 days")
    assert line.endswith("i-1, i-3")
