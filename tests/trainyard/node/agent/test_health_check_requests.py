"""Health checks that the controller requests of an agent."""

import psutil

from tests.polling import eventually
from tests.trainyard.node.agent.nodes import MASTER, HealthCheckNode
from trainyard.models.run import Control

# A health check where one program writes the reports of both processes and then hangs.
HEALTH_CHECK = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--folder") + 1])
print("Rendezvous'ing worker group\\nRendezvous complete for workers", flush=True)
for local_rank in (0, 1):
    report = {"stage": "done", "torch": "2.15.0", "backend": "gloo", "matmul_tflops": 0.25, "network_gbs": 1.5}
    (folder / f"process-{local_rank}.json").write_text(json.dumps(report))
time.sleep(600)
"""
HANGING = HEALTH_CHECK.replace('"done"', '"multiply matrices"')


def test_complete_health_check_is_reported_while_torchrun_waits(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HEALTH_CHECK)
    reported = health_check_node.wait_for()
    assert (reported.number, reported.faults, reported.missing_peers, reported.incomplete_stage) == (1, (), (), None)
    assert (reported.measurements.matmul_tflops, reported.measurements.network_gbs, reported.measurements.network) == (
        0.25,
        1.5,
        "gloo",
    )
    eventually(lambda: health_check_node.node.agent._health_check is None, "the end of the health check")


def test_hung_health_check_is_stopped_at_the_deadline_and_reported(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING, minutes=2 / 60)
    reported = health_check_node.wait_for()
    assert [fault.kind for fault in reported.faults] == ["hung", "hung"]
    assert reported.measurements.torch == "2.15.0"


def test_health_check_that_cannot_start_is_a_fault_of_the_node(health_check_node: HealthCheckNode) -> None:
    folder = health_check_node.node.folder / "runs" / health_check_node.node.record.run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "check-0001").touch()
    health_check_node.request(1, HEALTH_CHECK)
    (fault,) = health_check_node.wait_for().faults
    assert fault.text.startswith("the health check cannot start: NotADirectoryError")


def test_cancelled_health_check_is_stopped_and_not_reported(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING)
    process = health_check_node.process_id()
    health_check_node.write(Control(health_check_count=1))
    eventually(lambda: not psutil.pid_exists(process), "the end of the health check")
    assert health_check_node.reported() == []


def test_attempt_starts_after_a_health_check(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HEALTH_CHECK)
    health_check_node.wait_for()
    health_check_node.write(Control(health_check_count=1, attempt=1, nodes=("i-1",), master=MASTER))
    health_check_node.node.wait_for("workers_up 1")


def test_health_check_order_stops_a_lost_attempt(health_check_node: HealthCheckNode) -> None:
    """A rank that waits for a lost peer may not have noticed the loss."""
    health_check_node.node.request(1)
    health_check_node.node.wait_for("workers_up 1")
    health_check_node.request(1, HEALTH_CHECK)
    assert health_check_node.wait_for().faults == ()
    assert not (health_check_node.node.folder / "bundle/saved").exists()


def test_restarted_agent_reports_the_health_check_as_failed(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING)
    process = health_check_node.process_id()
    health_check_node.node.agent._health_check = None  # the agent is killed, its unit is not
    health_check_node.node.kill_agent()
    (fault,) = health_check_node.wait_for().faults
    assert fault.text == "the agent of the node exited during the health check"
    assert not psutil.pid_exists(process)


def test_stop_of_the_agent_ends_the_health_check(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING)
    process = health_check_node.process_id()
    health_check_node.node.close()
    assert not psutil.pid_exists(process)
