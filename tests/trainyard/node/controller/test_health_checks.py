"""The controller and the checks that it orders, against a real group and real objects."""

import time
from typing import Any

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests.clusters import build
from tests.conftest import REGION
from tests.trainyard.node.controller.test_controller import FAILURE, Run
from trainyard.models.health_check import Fault, Verification
from trainyard.models.run import Control, Outcome
from trainyard.node.controller import health_checks as checks
from trainyard.node.controller.health_checks import REPORT_SECONDS

HUNG = Fault(kind="hung", text="process 1 did not end: multiply matrices")


class Verified(Run):
    """A run whose nodes are checked before they work."""

    def __init__(self, **record: Any) -> None:
        super().__init__(build(REGION), **record)
        limits = self.record.limits.model_copy(update={"verify_minutes": 3.0})
        self.record = self.record.model_copy(update={"limits": limits})
        self.supervise()

    def look(self) -> Outcome | None:
        """A step of the controller that asks the groups for their members."""
        self.supervision._members_at = 0.0
        return self.supervision.step()

    @property
    def ordered(self) -> Control:
        found = self.control()
        assert found is not None
        return found

    def tell(self, check: int, **faults: tuple[Fault, ...]) -> None:
        """What all nodes say of a check; `first` or `second`: the faults of that node."""
        for name, node in zip(("first", "second"), self.nodes, strict=True):
            self.cluster.checked(self.record.run, node, check, faults=faults.get(name, ()))

    def verification(self) -> Verification:
        return Verification.model_validate_json(self.cluster.data.read(self.layout.verification))

    def replaced(self, gone: str) -> str:
        """The node that Auto Scaling has put in its place; it takes its part from here on."""
        (new,) = [node for node in self.cluster.members() if node not in self.nodes]
        self.nodes[self.nodes.index(gone)] = new
        return new

    def leave(self, node: str) -> None:
        self.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=node, ShouldDecrementDesiredCapacity=True
        )


@pytest.fixture
def run(account: EmulatedAws) -> Verified:
    return Verified()


def test_nodes_are_checked_before_the_first_attempt(run: Verified) -> None:
    run.cluster.agent(run.record.run, run.nodes[0], "ready", 0)
    run.look()
    assert run.control() is None  # not before all are ready
    run.step("ready", 0)
    assert run.ordered.attempt == 0
    assert run.ordered.check is not None
    assert (run.ordered.check.number, set(run.ordered.check.nodes)) == (1, set(run.nodes))


def test_a_good_check_opens_the_attempt(run: Verified) -> None:
    run.step("ready", 0)
    run.tell(1)
    run.look()
    run.look()
    assert (run.ordered.attempt, run.ordered.check, set(run.ordered.nodes)) == (1, None, set(run.nodes))
    assert run.verification().verdict == "passed"
    assert {one.node for one in run.verification().nodes} == set(run.nodes)


def test_a_check_waits_for_all_reports(run: Verified) -> None:
    run.step("ready", 0)
    run.cluster.checked(run.record.run, run.nodes[0], 1)
    run.look()
    assert run.ordered.check is not None


def test_a_lost_attempt_of_verified_nodes_is_followed_at_once(run: Verified) -> None:
    run.step("ready", 0)
    run.tell(1)
    run.look()
    run.look()
    run.step("workers_failed", 1, (FAILURE,))
    run.look()
    assert (run.ordered.attempt, run.ordered.checks) == (2, 1)


def test_a_node_that_fails_twice_is_replaced_and_the_job_starts(run: Verified) -> None:
    run.step("ready", 0)
    bad = run.nodes[1]
    run.tell(1, second=(HUNG,))
    run.look()
    assert bad in run.cluster.members()
    assert run.verification().verdict == "repeat"
    run.look()
    assert run.ordered.check is not None
    assert (run.ordered.check.number, set(run.ordered.check.nodes)) == (2, set(run.nodes))
    run.tell(2, second=(HUNG,))
    run.look()
    assert run.verification().unhealthy == (bad,)
    assert f"{bad} failed twice: {HUNG.text}" in run.verification().reason
    new = run.replaced(bad)
    run.look()
    assert run.ordered.check is None  # the new one is not ready yet
    run.cluster.agent(run.record.run, new, "ready", 0)
    run.look()
    assert run.ordered.check is not None
    assert set(run.ordered.check.nodes) == set(run.nodes)
    run.tell(3)
    run.look()
    run.look()
    assert (run.ordered.attempt, set(run.ordered.nodes)) == (1, set(run.nodes))


def test_a_node_that_fails_once_stays(run: Verified) -> None:
    run.step("ready", 0)
    before = set(run.cluster.members())
    run.tell(1, second=(HUNG,))
    run.look()
    run.look()
    run.tell(2)
    run.look()
    run.look()
    assert run.ordered.attempt == 1
    assert set(run.cluster.members()) == before


def test_a_node_marked_unhealthy_is_in_no_attempt_while_it_is_still_there(
    run: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On AWS its group takes some time to see that."""
    run.step("ready", 0)
    monkeypatch.setattr(run.supervision.groups, "mark_unhealthy", lambda node: None)
    for check in (1, 2):
        run.tell(check, second=(HUNG,))
        run.look()
        run.look()
    assert (run.ordered.check, run.ordered.unhealthy) == (None, (run.nodes[1],))


def test_a_mark_that_aws_refuses_is_tried_again(run: Verified, account: EmulatedAws) -> None:
    run.step("ready", 0)
    bad = run.nodes[1]
    run.tell(1, second=(HUNG,))
    run.look()
    run.look()
    run.tell(2, second=(HUNG,))
    account.inject(Deny(operation="autoscaling:SetInstanceHealth"))
    try:
        with pytest.raises(Exception, match="SetInstanceHealth"):  # the controller says it and goes on
            run.look()
    finally:
        account.clear_faults()
    run.supervise()
    run.look()
    assert run.ordered.unhealthy == (bad,)
    run.replaced(bad)


def test_a_controller_started_again_goes_on_with_the_check(run: Verified) -> None:
    run.step("ready", 0)
    run.tell(1, second=(HUNG,))
    run.look()
    run.look()
    run.supervise()
    run.tell(2, second=(HUNG,))
    run.look()
    assert run.verification().unhealthy == (run.nodes[1],)


def test_what_all_nodes_have_twice_ends_the_run(run: Verified) -> None:
    run.step("ready", 0)
    run.tell(1, first=(HUNG,), second=(HUNG,))
    run.look()
    run.look()
    run.tell(2, first=(HUNG,), second=(HUNG,))
    outcome = run.look()
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.reason.startswith("verification of the nodes: all 2 nodes failed twice the same way")
    assert set(run.cluster.members()) == set(run.nodes)


def test_a_node_that_says_nothing_is_blamed_at_the_deadline(run: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step("ready", 0)
    run.cluster.checked(run.record.run, run.nodes[0], 1, absent=(run.nodes[1],))
    run.look()
    assert run.ordered.check is not None
    monkeypatch.setattr(checks, "REPORT_SECONDS", -3 * 60.0)
    run.look()
    assert {node: [one.kind for one in faults] for node, faults in run.verification().blamed.items()} == {
        run.nodes[1]: ["silent"]
    }


def test_a_fault_cuts_the_check_short_and_who_had_no_time_is_not_blamed(
    run: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FAULT_SECONDS", 0.0)
    run.step("ready", 0)
    run.cluster.checked(run.record.run, run.nodes[0], 1, faults=(HUNG,))
    run.look()
    assert run.verification().blamed.keys() == {run.nodes[0]}
    assert run.verification().seconds < REPORT_SECONDS


def test_a_node_that_leaves_voids_the_check(run: Verified) -> None:
    run.step("ready", 0)
    run.leave(run.nodes[1])
    run.look()
    assert run.ordered.check is None
    assert run.cluster.data.find(run.layout.verification) is None


def working(run: Verified) -> None:
    run.step("ready", 0)
    run.tell(1)
    run.look()
    run.look()
    run.step("workers_up", 1)


def test_new_nodes_are_checked_while_the_job_goes_on(run: Verified) -> None:
    working(run)
    (new,) = run.cluster.launch(1)
    run.supervision.run = run.record.model_copy(update={"nodes": 3})
    run.cluster.agent(run.record.run, new, "ready", 0)
    run.look()
    assert run.ordered.attempt == 1
    assert run.ordered.check is not None
    assert run.ordered.check.nodes == (new,)
    run.cluster.checked(run.record.run, new, 2)
    run.look()
    assert (run.ordered.attempt, set(run.ordered.nodes), run.ordered.save) == (2, {*run.nodes, new}, True)


def test_a_new_node_of_other_versions_does_not_join_the_job(run: Verified) -> None:
    working(run)
    (new,) = run.cluster.launch(1)
    run.supervision.run = run.record.model_copy(update={"nodes": 3})
    run.cluster.agent(run.record.run, new, "ready", 0)
    run.look()
    run.cluster.checked(run.record.run, new, 2, measured={"torch": "2.14.0"})
    run.look()
    assert run.verification().blamed[new][0].text == "torch 2.14.0, where 2 of 3 nodes have 2.15.0"
    assert run.ordered.attempt == 1


def test_a_growth_that_was_taken_back_takes_its_check_with_it(run: Verified) -> None:
    working(run)
    (new,) = run.cluster.launch(1)
    run.supervision.run = run.record.model_copy(update={"nodes": 3})
    run.cluster.agent(run.record.run, new, "ready", 0)
    run.look()
    run.supervision.run = run.record
    run.look()
    assert (run.ordered.attempt, run.ordered.check) == (1, None)


def test_a_replacement_is_checked_with_the_others(run: Verified) -> None:
    working(run)
    run.leave(run.nodes[0])
    run.look()
    (new,) = run.cluster.launch(1)
    run.nodes[0] = new
    run.cluster.agent(run.record.run, new, "ready", 0)
    run.look()
    assert run.ordered.attempt == 1
    assert run.ordered.check is not None
    assert set(run.ordered.check.nodes) == set(run.nodes)


def test_a_bring_up_that_is_over_says_what_the_check_saw(run: Verified) -> None:
    run.step("ready", 0)
    run.tell(1, second=(HUNG,))
    run.look()
    run.supervision.run = run.record.model_copy(update={"created": time.time() - 3000})
    outcome = run.look()
    assert outcome is not None
    assert outcome.reason.startswith("the job had not started within 5 minutes; verification of the nodes: ")
    assert HUNG.text in outcome.reason
