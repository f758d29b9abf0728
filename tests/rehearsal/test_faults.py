"""Faults as they are asked for: what is written is what is injected, and what can't be is told with what can."""

from pathlib import Path

import pytest

from rehearsal.aws.faults import Capacity, Deny, Fault, Invisible, Outage, Throttle
from rehearsal.faults import check_faults, faults_of, spec_of
from trainyard.base import InputError
from trainyard.config.loader import read_settings

FAULTS: dict[str, Fault] = {
    "capacity,limit=2": Capacity(limit=2),
    "capacity,limit=2,instance_type=t3.medium": Capacity(limit=2, instance_type="t3.medium"),
    "throttle,operation=ec2:CreateVpc,times=2": Throttle(operation="ec2:CreateVpc", times=2),
    "outage,operation=s3:GetObject,times=3": Outage(operation="s3:GetObject", times=3),
    "invisible,seconds=5.0": Invisible(seconds=5),
    "deny,operation=fsx:CreateFileSystem": Deny(operation="fsx:CreateFileSystem"),
}
CAPACITY = "Write it as capacity,limit=LIMIT[,instance_type=INSTANCE_TYPE]"
WRONG = {
    "earthquake": "no kind of fault 'earthquake'. Write it as one of capacity,limit=LIMIT",
    "": "no kind of fault ''",
    "capacity": f"limit: it is missing. {CAPACITY}",
    "capacity,limit": f"'limit' is no key=value of it. {CAPACITY}",
    "capacity,limit=1,limit=2": f"a key stands twice. {CAPACITY}",
    "capacity,limit=few": f"limit: not a whole number. {CAPACITY}",
    "capacity,limit=-1": f"limit: must be 0 or more. {CAPACITY}",
    "capacity,limit=1,zone=a": f"zone: no such key. {CAPACITY}",
    "capacity,kind=deny": "'kind' is no key=value of it",
    "capacity,limit=1,instance_type=p9.huge": "p9.huge is not in the hardware catalog; it has t3.medium",
    "invisible,seconds=inf": "seconds: not a finite number. Write it as invisible,seconds=SECONDS",
    "deny,operation=CreateVpc": "must be a service as in IAM and one of its API operations",
    "deny,operation=ec2:CreateVPC": "no API operation ec2:CreateVPC",
    "throttle,operation=ec3:CreateVpc,times=1": "no service ec3",
}


@pytest.mark.parametrize("spec", FAULTS)
def test_a_fault_is_what_was_written(spec: str) -> None:
    assert faults_of([spec]) == (FAULTS[spec],)
    assert spec_of(FAULTS[spec]) == spec


@pytest.mark.parametrize("spec", WRONG)
def test_a_wrong_one_is_told_with_the_way_to_write_it(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        faults_of([spec])
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("--fault", spec)
    assert WRONG[spec] in str(problem)


def test_all_wrong_ones_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_DENY", "ec2:CreateVpc, everything")
    with pytest.raises(InputError) as caught:
        faults_of(["earthquake", "capacity,limit=1", "flood"])
    told = [(problem.key, problem.value) for problem in caught.value.problems]
    assert told == [("--fault", "earthquake"), ("--fault", "flood"), ("REHEARSAL_DENY", "ec2:CreateVpc, everything")]
    assert "everything is no operation such as fsx:CreateFileSystem" in str(caught.value)


def test_an_interruption_that_no_node_can_meet_is_refused(tmp_path: Path) -> None:
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    fault = faults_of(["spot-interruption,seconds=5"])
    with pytest.raises(InputError, match="the stack has no Spot node"):
        check_faults(fault, read_settings(raw, tmp_path, "x"))
    check_faults(fault, read_settings({**raw, "capacity": {"spot": {}}}, tmp_path, "x"))
