"""Recovery from faults, from the records of a run."""

import pytest

from rehearsal.fault_effects import ends_attempt, fault_kind
from rehearsal.recovery import find_recoveries
from tests.rehearsal.chaos.runs import injection, interrupted_run

KILL = "rank-kill,rank=3,peers=hang,after=10"


def test_phases_count_from_the_injection() -> None:
    (recovery,) = find_recoveries([injection(KILL, 40.5, "a", checkpoint="step-00000008")], interrupted_run())
    assert (recovery.kind, recovery.attempt) == ("rank-kill,peers=hang", 1)
    phases = (recovery.detected_seconds, recovery.restarted_seconds, recovery.next_step_seconds)
    assert phases == (4.5, 9.5, 15.5)
    assert recovery.caught_up_seconds == 16.5
    assert (recovery.repeated_steps, recovery.lost_saved_steps) == (2, 0)


def test_steps_of_a_checkpoint_that_are_done_again_are_unsaved() -> None:
    (recovery,) = find_recoveries([injection(KILL, 40.5, "a", checkpoint="step-00000010")], interrupted_run())
    assert (recovery.repeated_steps, recovery.lost_saved_steps) == (2, 2)


def test_fault_that_ends_no_attempt_has_no_phases() -> None:
    kill, later = injection("agent-kill,node=0", 35.0, "a"), injection(KILL, 40.5, "a")
    recovery, _ = find_recoveries([kill, later], interrupted_run())
    assert (recovery.attempt, recovery.detected_seconds, recovery.repeated_steps) == (None, None, 0)
    assert recovery.longest_step_seconds is not None


def test_attempt_ended_by_a_fault_that_should_not_end_it_counts_unless_only_expected_ends_do() -> None:
    kill = [injection("agent-kill,node=0", 35.0, "a")]
    assert find_recoveries(kill, interrupted_run())[0].attempt == 1
    assert find_recoveries(kill, interrupted_run(), only_expected=True)[0].attempt is None
    partition = [injection("network-partition,between=nodes,seconds=60.0", 35.0, "a")]
    assert find_recoveries(partition, interrupted_run(), only_expected=True)[0].attempt == 1


@pytest.mark.parametrize(
    ("fault", "kind", "ends"),
    [
        ("node-hang,node=1,after=3", "node-hang", True),
        ("agent-hang,node=1,step=3", "agent-hang", False),
        ("node-slow,node=1,factor=3.5,after=3", "node-slow", True),
        ("gpu,node=1,gpu=2,xid=119,after=3", "gpu,xid=119", True),
        ("gpu,node=1,condition=row-remap-pending", "gpu,condition=row-remap-pending", False),
        ("service-outage,service=s3,seconds=20.0,after=3", "service-outage,service=s3", False),
        ("spot-interruption,seconds=0.0,after=3", "spot-interruption", True),
    ],
)
def test_kind_of_a_fault(fault: str, kind: str, ends: bool) -> None:
    assert (fault_kind(fault), ends_attempt(fault)) == (kind, ends)
