"""The launch against a real group: all nodes or none, and one clear reason."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import Meanwhile, Recorder
from trainyard.models.events import VerdictEvent
from trainyard.models.health_check import Fault
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, attempt_source, chunk_key, chunk_prefix
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.operations import startup as bringup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import BringUpError, LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.startup import OUTAGE_SECONDS, Deadline, Nodes

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return clusters.build(REGION, train=None, command=("train.py",))


@pytest.fixture
def nodes(cluster: clusters.Cluster, meanwhile: Meanwhile) -> Callable[[Callable[[str, list[str]], None]], None]:
    """The nodes act once they are launched: given the run and them."""

    def start(act: Callable[[str, list[str]], None]) -> None:
        def launched() -> bool:
            members = cluster.members()
            found = cluster.staging.find(CURRENT_RUN)
            if found is None or len(members) != 2:
                return False
            act(RunRecord.model_validate_json(found).run, members)
            return True

        meanwhile(launched)

    return start


def launch(cluster: clusters.Cluster) -> tuple[Launch, Recorder]:
    show = Recorder()
    return Launch(Cluster(cluster.stack, REGION), show), show


def outcome(cluster: clusters.Cluster, run: str) -> Outcome | None:
    found = cluster.data.find(RunLayout(run).outcome)
    return None if found is None else Outcome.model_validate_json(found)


def test_it_returns_when_every_node_has_its_workers_up(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_is_ready()

    def act(run: str, members: list[str]) -> None:
        for node in members:
            cluster.play(run, node, "ok")
            cluster.agent(run, node, "workers_up", 1)

    nodes(act)
    made, show = launch(cluster)
    result = made.go()
    assert sorted(result.nodes) == sorted(cluster.members())
    assert result.phases.keys() == {"dataset", "head", "workers", "bring_up"}
    assert any("workers up, attempt 1" in line for line in show.lines)


def test_what_nodes_measure_is_shown_and_then_the_verdict(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_is_ready()

    def act(run: str, members: list[str]) -> None:
        fault = Fault(kind="gpus", text="7 usable GPUs, p4d.24xlarge has 8")
        cluster.checked(run, members[0], 1)
        cluster.checked(run, members[1], 1, faults=(fault,))
        cluster.say(run, "i-0", verdict(run, members[1]))  # listed first, and said last
        for node in members:
            cluster.agent(run, node, "workers_up", 1)

    nodes(act)
    made, show = launch(cluster)
    first, second = made.go().nodes
    shown = [line for line in show.lines if "check 1" in line]
    assert shown == [
        f"{first} check 1: gloo, matmul 0.1 TFLOP/s",
        f"{second} check 1: failed, 7 usable GPUs, p4d.24xlarge has 8",
        f"verification check 1: {second} failed",
    ]


def verdict(run: str, node: str) -> VerdictEvent:
    told = {"run": run, "check": 1, "verdict": "repeat", "text": f"{node} failed"}
    return VerdictEvent.model_validate({**clusters.stamp("i-0", "head"), "time": time.time() + 60, **told})


def test_a_launch_tells_the_nodes_that_the_job_runs_on(cluster: clusters.Cluster, nodes: Any) -> None:
    """One that was launched may have been found unhealthy and replaced."""
    cluster.head_is_ready()

    def act(run: str, members: list[str]) -> None:
        control = Control(attempt=1, nodes=(members[0], "i-other"))
        cluster.data.write(RunLayout(run).control, control.model_dump_json().encode())
        for node in control.nodes:
            cluster.agent(run, node, "workers_up", 1)

    nodes(act)
    made, _ = launch(cluster)
    assert "i-other" in made.go().nodes


def test_the_lease_is_there_before_the_nodes(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.head_is_ready()
    made, _ = launch(cluster)
    seen: list[float | None] = []

    def look(wanted: dict[str, int]) -> None:
        seen.append(cluster.lease())
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", look)
    with pytest.raises(LaunchError, match="seen"):
        made.go()
    assert seen[0] == pytest.approx(time.time() + 20 * 60, abs=20)


def test_the_lease_never_outlives_the_time_limit(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = cluster.manifest.limits.model_copy(update={"time_limit_minutes": 6.0})
    manifest = cluster.manifest.model_copy(update={"limits": limits})
    cluster.staging.write(MANIFEST, manifest.model_dump_json().encode())
    cluster.head_is_ready()
    made, _ = launch(cluster)

    def look(wanted: dict[str, int]) -> None:
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", look)
    with pytest.raises(LaunchError, match="seen"):
        made.go()
    assert cluster.lease() == pytest.approx(made.record.deadline, abs=1.0)


def test_fewer_nodes_than_asked_for_means_none(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    cluster.head_is_ready()
    made, _ = launch(cluster)
    account.inject(clusters.room_for(account, 1))
    try:
        with pytest.raises(LaunchError, match=r"1 of 2 nodes .* so none stays: InsufficientInstanceCapacity"):
            made.go()
    finally:
        account.clear_faults()
    assert cluster.members() == []
    assert cluster.described()["DesiredCapacity"] == 0


def test_a_node_that_fails_gives_its_own_message(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_is_ready()

    def act(run: str, members: list[str]) -> None:
        cluster.play_fails_for_good(run, members[0], "pytorch: Ask torch: no such file")

    nodes(act)
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=r"node i-\w+ could not be configured: pytorch: Ask torch: no such file"):
        made.go()
    assert cluster.members() == []
    ended = outcome(cluster, made.record.run)
    assert ended is not None
    assert ended.state == "failed"


def test_a_head_that_fails_ends_the_launch_before_any_node(cluster: clusters.Cluster) -> None:
    cluster.head_fails_for_good("preflight: the manifest is bad")
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match="the head i-head could not be configured: preflight: the manifest is bad"):
        made.go()
    assert cluster.members() == []
    assert cluster.staging.find(CURRENT_RUN) is None


def test_a_job_that_ends_at_once_gives_its_traceback(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_is_ready()
    failure = {"rank": 1, "time": 1.0, "exitcode": 1, "message": "ValueError", "traceback": "Traceback: here"}

    def act(run: str, members: list[str]) -> None:
        ended = Outcome.model_validate(
            {"state": "failed", "reason": "rank 1 failed", "attempts": 2, "ended": 1.0, "failure": failure}
        )
        cluster.data.write(RunLayout(run).outcome, ended.model_dump_json().encode())
        # As the controller goes on: the launch finds its nodes gone.
        cluster.autoscaling.set_desired_capacity(AutoScalingGroupName=cluster.group, DesiredCapacity=0)

    nodes(act)
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=r"the job failed: rank 1 failed\nTraceback: here"):
        made.go()
    assert cluster.members() == []


def test_silence_ends_with_what_was_last_seen(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_is_ready()
    nodes(lambda run, members: cluster.play(run, members[0], "started"))
    made, _ = launch(cluster)
    made.deadline.at = time.time() + 4
    with pytest.raises(LaunchError, match=r"the job's start did not come within .*configuring itself.*no sign yet"):
        made.go()
    assert cluster.members() == []


def test_a_second_launch_leaves_the_first_alone(cluster: clusters.Cluster) -> None:
    record = cluster.record()
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    running = cluster.launch(2)
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=f"run {record.run} is still on the cluster"):
        made.go()
    assert sorted(cluster.members()) == sorted(running)


def test_the_trainer_needs_a_dataset(account: EmulatedAws) -> None:
    cluster = clusters.build(REGION, builtin_corpus=False)
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=r"has no dataset \(dataset.json\): upload one there, or set job"):
        made.go()


def test_a_resumed_run_must_have_a_checkpoint(account: EmulatedAws) -> None:
    cluster = clusters.build(REGION, train=None, command=("train.py",), resume="no-such-run")
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=r"job.resume = 'no-such-run': that run left no checkpoint"):
        made.go()


def test_the_trainer_has_started_with_its_first_metric_line(account: EmulatedAws) -> None:
    cluster = clusters.build(REGION)
    run = cluster.record().run
    nodes = Nodes(Cluster(cluster.stack, REGION), Recorder(), Deadline(0.005), run)
    nodes.expect(["i-1"])
    cluster.agent(run, "i-1", "workers_up", 2)
    prefix = chunk_prefix(RunLayout(run).metrics, "i-1", "0001", attempt_source(1, "metrics"))
    cluster.data.write(chunk_key(prefix, 0), b"{}\n")  # of the attempt before
    with pytest.raises(BringUpError, match="the job's start did not come"):
        nodes.wait_for_job(1)
    prefix = chunk_prefix(RunLayout(run).metrics, "i-1", "0001", attempt_source(2, "metrics"))
    cluster.data.write(chunk_key(prefix, 0), b"{}\n")
    nodes.wait_for_job(1)


def test_a_play_that_failed_for_a_minute_and_then_went_well_is_well(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_is_ready()

    def act(run: str, members: list[str]) -> None:
        for node in members:
            cluster.play(run, node, "failed", "a mirror was away")
            cluster.play(run, node, "failed", "a mirror was away", OUTAGE_SECONDS - 1)
            cluster.play(run, node, "ok", "", OUTAGE_SECONDS)
            cluster.agent(run, node, "workers_up", 1)

    nodes(act)
    made, _ = launch(cluster)
    assert len(made.go().nodes) == 2


def test_words_of_an_earlier_head_do_not_count(cluster: clusters.Cluster, nodes: Any) -> None:
    cluster.head_fails_for_good("bad", head="i-earlier")
    made, _ = launch(cluster)
    made.deadline.at = time.time() + 1
    with pytest.raises(LaunchError, match="the head's rendezvous store and controller did not come"):
        made.go()


def test_a_launch_that_waits_for_capacity_is_not_overrun(cluster: clusters.Cluster) -> None:
    record = cluster.record()
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=f"run {record.run} is still on the cluster"):
        made.go()


def test_a_silent_node_is_named_before_the_deadline(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringup, "SILENT_SECONDS", 1.0)
    cluster.head_is_ready()
    made, _ = launch(cluster)
    with pytest.raises(LaunchError, match=r"no sign of i-\w+, i-\w+ within"):
        made.go()
    assert cluster.members() == []
