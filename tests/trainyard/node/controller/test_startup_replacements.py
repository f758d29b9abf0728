"""Nodes whose startup fails."""

from tests.trainyard.node.controller.runs import Run, StartingRun
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS


def test_node_that_cannot_be_configured_ends_a_run_that_has_not_started(run: Run) -> None:
    for after in (0.0, 2 * PLAYBOOK_RETRY_SECONDS):
        run.cluster.write_playbook_event(run.record.run, run.nodes[0], "failed", "no mirror", after)
    outcome = run.controller.step()
    assert outcome is not None
    assert outcome.reason == f"node {run.nodes[0]} could not be configured: no mirror"
    assert outcome.launch_failed


def test_node_that_cannot_start_is_replaced(starting_run: StartingRun) -> None:
    first, _ = starting_run.nodes
    starting_run.fail_startup(first)
    assert starting_run.controller.step() is None
    assert starting_run.published.failed_startups == {first: "no mirror"}
    assert starting_run.published.unhealthy_nodes == (first,)
    assert starting_run.controller.step() is None


def test_failure_of_a_second_node_in_the_same_way_ends_the_launch(starting_run: StartingRun) -> None:
    first, second = starting_run.nodes
    starting_run.fail_startup(first)
    starting_run.controller.step()
    starting_run.fail_startup(second)
    outcome = starting_run.controller.step()
    assert outcome is not None
    assert outcome.reason.endswith(f"no mirror. The startup of {first} failed in the same way before")


def test_permanent_failure_of_startup_ends_the_launch(starting_run: StartingRun) -> None:
    starting_run.fail_startup(starting_run.nodes[0], is_permanent=True)
    outcome = starting_run.controller.step()
    assert outcome is not None
    assert outcome.reason.endswith("could not be configured: no mirror")


def test_replacements_of_startup_are_limited(starting_run: StartingRun) -> None:
    node = starting_run.nodes[0]
    for number in range(2):
        starting_run.fail_startup(node, f"reason {number}")
        assert starting_run.controller.step() is None
        node = starting_run.replace(node)
    starting_run.fail_startup(node, "reason 2")
    outcome = starting_run.controller.step()
    assert outcome is not None
    assert outcome.reason.endswith("reason 2, after 2 replacements (launch.max_startup_replacements)")


def test_added_node_that_fails_is_not_replaced_by_the_controller(starting_run: StartingRun) -> None:
    starting_run.step("ready", 0)
    (added,) = starting_run.cluster.launch_instances(1)
    starting_run.fail_startup(added)
    starting_run.step_with_members()
    assert starting_run.published.failed_startups == {}


def test_node_that_fails_to_start_after_the_first_attempt_is_replaced_again(starting_run: StartingRun) -> None:
    run = starting_run
    run.step("ready", 0)
    run.step("workers_up", 1)
    first = run.replace(run.nodes[0])
    run.fail_startup(first)
    assert run.controller.step() is None
    second = run.replace(first)
    run.fail_startup(second)
    assert run.controller.step() is None
    assert set(run.published.unhealthy_nodes) >= {first, second}
