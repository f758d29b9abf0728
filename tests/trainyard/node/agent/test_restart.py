"""A killed or stopped agent, and its successor that continues the attempt."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.polling import eventually
from tests.trainyard.node.agent.nodes import NodeWithAgent
from trainyard.models.events import AgentEvent
from trainyard.node.agent.job_process import EXIT_FILE
from trainyard.node.agent.job_unit import JobUnit


def test_attempt_continues_when_the_agent_is_killed(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    process = node.unit().process_id
    node.kill_agent()
    eventually(lambda: node.agent._attempt is not None, "the second agent")
    assert node.unit().process_id == process
    node.finish(0)
    node.wait_for("workers_done 1")
    assert node.reported() == ["ready 0", "workers_up 1", "workers_done 1"]


def test_requested_checkpoint_is_saved_after_the_agent_was_killed(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.kill_agent()
    node.request(1, requests=1)
    eventually((node.folder / "bundle/saved").exists, "the checkpoint")


@pytest.mark.parametrize(("code", "state"), [(0, "workers_done"), (3, "workers_failed")])
def test_attempt_that_ended_without_an_agent_is_reported(node: NodeWithAgent, code: int, state: str) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    attempt = node.folder / "runs" / node.record.run / "attempt-0001"
    node.stop_agent()
    node.finish(code)
    eventually((attempt / "process" / EXIT_FILE).exists, "the end of the attempt")
    node.start_agent()
    node.wait_for(f"{state} 1")


def test_attempt_in_a_killed_unit_is_reported_as_failed(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    unit = node.unit()
    node.stop_agent()
    unit.kill()
    node.start_agent()
    node.wait_for("workers_failed 1")
    assert node.reported().count("workers_up 1") == 1


def test_unit_of_an_earlier_run_is_stopped(node: NodeWithAgent, tmp_path: Path) -> None:
    """The run may have ended while no agent ran."""
    node.stop_agent()
    folder = tmp_path / "earlier"
    folder.mkdir()
    earlier = JobUnit("earlier", 1, folder)
    earlier.start(["/bin/sleep", "600"], folder, {})
    node.start_agent()
    eventually(lambda: earlier.exit_code() is not None, "the end of the unit")


def test_reboot_of_the_node_is_the_reason_of_a_failed_attempt(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    unit = node.unit()
    node.stop_agent()
    unit.stop()
    node.node = node.node.model_copy(update={"boot": "0002"})
    node.start_agent()
    node.wait_for("workers_failed 1")
    (event,) = (event for event in node.events() if isinstance(event, AgentEvent) and event.failures)
    assert (event.failures[0].message, event.failures[0].local_rank) == ("the node rebooted", None)


def test_ranks_that_a_killed_agent_has_killed_have_no_failure_of_their_own(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.agent._state_file.update(killed_ranks=(0,))
    report = "time : now\nrank : {0} (local_rank: {0})\nexitcode : -9\n"
    log = node.folder / "runs" / node.record.run / "attempt-0001/process/torchrun.log"
    node.kill_agent()
    with log.open("a") as file:
        file.write(report.format(0) + report.format(1))
    node.finish(1)
    node.wait_for("workers_failed 1")
    (event,) = (event for event in node.events() if isinstance(event, AgentEvent) and event.failures)
    assert [failure.local_rank for failure in event.failures] == [1]


def test_attempt_continues_when_the_service_stops(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    process = node.unit().process_id
    node.close()
    node.start_agent()
    eventually(lambda: node.agent._attempt is not None, "the second agent")
    assert node.unit().process_id == process


@pytest.mark.parametrize("end_agent", [NodeWithAgent.stop_agent, NodeWithAgent.close], ids=["killed", "stopped"])
def test_logs_continue_after_the_agent_has_ended(
    node: NodeWithAgent, end_agent: Callable[[NodeWithAgent], None]
) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    logs = node.folder / "runs" / node.record.run / "attempt-0001/logs/run_x/attempt_0/0"
    logs.mkdir(parents=True)
    with (logs / "stdout.log").open("a") as log:
        log.write("step 1\nst")
        log.flush()
        eventually(lambda: node.log("rank0-stdout") == "step 1\n", "the first line")
        end_agent(node)
        log.write("ep 2\n")
    node.start_agent()
    eventually(lambda: node.log("rank0-stdout") == "step 1\nstep 2\n", "the second line")


def test_restarted_agent_does_not_repeat_reports(node: NodeWithAgent) -> None:
    node.request(1)
    node.finish(0)
    node.wait_for("workers_done 1")
    node.kill_agent()
    eventually(lambda: node.reported().count("ready 0") == 2, "the second agent")
    assert "workers_failed 1" not in node.reported()
