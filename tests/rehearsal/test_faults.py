"""Parsing of --fault: valid values, and error messages with the syntax for invalid values."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from rehearsal.aws.faults import Capacity, Deny, EventualConsistency, Fault, Outage, ServiceOutage, Throttle
from rehearsal.faults import check_faults, format_fault, parse_faults
from rehearsal.run_faults.clocks import ClockStep
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.head import ControllerCrash, HeadHang, HeadTerminate
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.run_faults.network import NetworkPartition
from rehearsal.run_faults.nodes import (
    AgentHang,
    AgentKill,
    BootHang,
    DiskFull,
    KernelPanic,
    NodeHang,
    NodeTerminate,
)
from rehearsal.run_faults.ranks import OutOfMemoryKill, RankKill
from rehearsal.run_faults.slow_nodes import NodeSlow
from rehearsal.workspace import Options, read_stack
from tests.machines import ROOT
from tests.problems import rejects
from trainyard.config.loader import load_settings
from trainyard.config.project import read_project
from trainyard.errors import InputError

FAULTS: dict[str, Fault | ScheduledFault] = {
    "capacity,limit=2": Capacity(limit=2),
    "capacity,limit=2,instance_type=t3.medium": Capacity(limit=2, instance_type="t3.medium"),
    "throttle,operation=ec2:CreateVpc,times=2": Throttle(operation="ec2:CreateVpc", times=2),
    "outage,operation=s3:GetObject,times=3": Outage(operation="s3:GetObject", times=3),
    "eventual-consistency,seconds=5.0": EventualConsistency(seconds=5),
    "deny,operation=fsx:CreateFileSystem": Deny(operation="fsx:CreateFileSystem"),
    "rank-kill,rank=3,peers=hang,step=10": ScheduledFault(RankKill(rank=3, step=10, peers="hang")),
    "gpu,node=1,xid=79,step=20": ScheduledFault(GpuFault(node=1, step=20, xid=79)),
    "gpu,node=0,gpu=7,condition=thermal,step=5": ScheduledFault(GpuFault(node=0, step=5, gpu=7, condition="thermal")),
    "agent-kill,node=1,step=10": ScheduledFault(AgentKill(node=1, step=10)),
    "agent-hang,node=1,step=10": ScheduledFault(AgentHang(node=1, step=10)),
    "node-hang,node=1,step=10": ScheduledFault(NodeHang(node=1, step=10)),
    "rank-kill,rank=3,after=40": ScheduledFault(RankKill(rank=3), after=40),
    "service-outage,service=s3,seconds=30.0,after=2.5": ScheduledFault(
        ServiceOutage(service="s3", seconds=30), after=2.5
    ),
    "oom-kill,rank=1": ScheduledFault(OutOfMemoryKill(rank=1)),
    "node-terminate,node=1": ScheduledFault(NodeTerminate(node=1)),
    "node-slow,node=1,factor=3.0": ScheduledFault(NodeSlow(node=1, factor=3)),
    "kernel-panic,node=0,step=5": ScheduledFault(KernelPanic(node=0, step=5)),
    "clock-step,node=1,seconds=-5.0": ScheduledFault(ClockStep(node=1, seconds=-5)),
    "disk-full,node=1,seconds=20.0": ScheduledFault(DiskFull(node=1, seconds=20)),
    "network-partition,between=node-head,node=1,seconds=60.0": ScheduledFault(
        NetworkPartition(between="node-head", node=1, seconds=60)
    ),
    "boot-hang,after=3": ScheduledFault(BootHang(), after=3),
    "controller-crash,seconds=20.0": ScheduledFault(ControllerCrash(seconds=20)),
    "head-terminate,step=10": ScheduledFault(HeadTerminate(step=10)),
    "head-hang,seconds=5.0,step=10": ScheduledFault(HeadHang(step=10, seconds=5)),
}
CAPACITY = (
    "Use the syntax capacity,limit=LIMIT[,instance_type=INSTANCE_TYPE][,zone=ZONE]"
    "[,cluster_placement=CLUSTER_PLACEMENT][,after=SECONDS]"
)
INVALID = {
    "earthquake": "unknown kind of fault 'earthquake'. Use one of capacity,limit=LIMIT",
    "": "unknown kind of fault ''",
    "capacity": f"limit: required key is missing. {CAPACITY}",
    "capacity,limit": f"'limit' is not a valid key=value pair. {CAPACITY}",
    "capacity,limit=1,limit=2": f"duplicate key. {CAPACITY}",
    "capacity,limit=few": f"limit: not an integer. {CAPACITY}",
    "capacity,limit=-1": f"limit: must be 0 or more. {CAPACITY}",
    "capacity,limit=1,region=a": f"region: unknown key. {CAPACITY}",
    "capacity,kind=deny": "'kind' is not a valid key=value pair",
    "eventual-consistency,seconds=inf": "seconds: not a finite number. Use the syntax eventual-consistency,",
    "gpu,node=0,step=1": "condition: required without xid. Use the syntax gpu,node=NODE[,gpu=GPU][,xid=",
    "gpu,node=0,step=1,condition=smoke": "condition: ",
    "deny,operation=CreateVpc": "must be a service as in IAM and one of its API operations",
    "deny,operation=ec2:CreateVPC": "no API operation ec2:CreateVPC",
    "throttle,operation=ec3:CreateVpc,times=1": "no service ec3",
    "service-outage,service=s4,seconds=1": "no service s4",
    "rank-kill,rank=0,after=soon": "after: 'soon' is not a number of seconds. Use the syntax rank-kill,rank=RANK",
}


@pytest.mark.parametrize("spec", FAULTS)
def test_fault_is_parsed_and_formatted(spec: str) -> None:
    assert parse_faults([spec]) == (FAULTS[spec],)
    assert format_fault(FAULTS[spec]) == spec


@pytest.mark.parametrize(
    "spec",
    [
        "interface-quota,interfaces=40",
        "member-omission,every=5",
        "scaling-activity,times=2",
        "expired-credentials,seconds=5.0",
    ],
)
def test_formatted_fault_is_its_specification(spec: str) -> None:
    assert format_fault(parse_faults([spec])[0]) == spec


@pytest.mark.parametrize("spec", INVALID)
def test_invalid_fault_is_reported_with_its_syntax(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_faults([spec])
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("--fault", spec)
    assert INVALID[spec] in str(problem)


def test_all_invalid_faults_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_DENY", "ec2:CreateVpc, everything")
    with pytest.raises(InputError) as caught:
        parse_faults(["earthquake", "capacity,limit=1", "flood"])
    reported = [(problem.key, problem.value) for problem in caught.value.problems]
    assert reported == [
        ("--fault", "earthquake"),
        ("--fault", "flood"),
        ("REHEARSAL_DENY", "ec2:CreateVpc, everything"),
    ]
    assert "everything is not an operation such as fsx:CreateFileSystem" in str(caught.value)


def test_spot_interruption_without_spot_instances_is_rejected(tmp_path: Path) -> None:
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    fault = parse_faults(["spot-interruption,seconds=5"])
    with rejects("invalid_fault", "spot-interruption"):
        check_faults(fault, load_settings(raw, tmp_path, "x"), "us-east-1", "process")
    check_faults(fault, load_settings({**raw, "capacity": {"spot": {}}}, tmp_path, "x"), "us-east-1", "process")


def test_reclaim_without_an_interruptible_reservation_is_rejected(tmp_path: Path) -> None:
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    reservation: dict[str, object] = {"id": "cr-0123456789abcdef0"}
    fault = parse_faults(["reclaim,seconds=5"])
    interruptible = {**raw, "capacity": {"reservation": reservation}}
    with rejects("invalid_fault", "no interruptible reservation"):
        check_faults(fault, load_settings(interruptible, tmp_path, "x"), "us-east-1", "process")
    reservation["interruptible"] = True
    check_faults(fault, load_settings(interruptible, tmp_path, "x"), "us-east-1", "process")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "capacity,limit=1,instance_type=c7i.xlrage",
            "the stack has no c7i.xlrage. Did you mean c7i.xlarge? Use one of",
        ),
        (
            "capacity,limit=1,instance_type=p4d.24xlarge",
            "the stack has no p4d.24xlarge. ",
        ),
        ("capacity,limit=1,zone=us-east-9z", "region eu-west-1 has no us-east-9z. Use one of eu-west-1a, eu-west-1b"),
        ("reservation-failure,zone=us-east-1a", "region eu-west-1 has no us-east-1a"),
        ("fsx-deployment,zone=us-east-1a,type=SCRATCH_2", "region eu-west-1 has no us-east-1a"),
        ("spot-interruption,seconds=5,instance_type=c7i.large", "the stack has no c7i.large"),
    ],
)
def test_fault_in_another_zone_or_of_an_unused_type_is_rejected(spec: str, message: str, tmp_path: Path) -> None:
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    raw |= {"fsx": {"deployment_type": "SCRATCH_2"}, "capacity": {"spot": {}}}
    with rejects("invalid_fault", message):
        check_faults(parse_faults([spec]), load_settings(raw, tmp_path, "x"), "eu-west-1", "process")


@pytest.mark.parametrize(("rank", "is_valid"), [(3, True), (4, False)])
def test_killed_rank_must_exist(rank: int, is_valid: bool) -> None:
    settings = read_stack(Options(project=read_project(ROOT), stack="local"))[1]
    with nullcontext() if is_valid else pytest.raises(InputError, match="the stack has ranks 0 to 3"):
        check_faults([RankKill(rank=rank, step=1)], settings, "us-east-1", "process")


def test_step_of_a_fault_must_be_before_the_last() -> None:
    settings = read_stack(Options(project=read_project(ROOT), stack="local"))[1]
    assert settings.job.train is not None
    steps = settings.job.train.steps
    check_faults([RankKill(rank=0, step=steps - 1)], settings, "us-east-1", "process")
    with pytest.raises(InputError, match=f"step: the job has {steps} steps"):
        check_faults([RankKill(rank=0, step=steps)], settings, "us-east-1", "process")


@pytest.mark.parametrize(
    ("stack", "fault", "message"),
    [
        ("local", GpuFault(node=1, step=1, xid=79), ""),
        ("local", GpuFault(node=2, step=1, xid=79), "the stack has nodes 0 to 1"),
        ("local", GpuFault(node=1, step=1, condition="ecc"), "the nodes of the stack have no GPUs"),
        ("a100-cluster", GpuFault(node=1, step=1, gpu=7, condition="ecc"), ""),
        ("a100-cluster", GpuFault(node=1, step=1, gpu=8, xid=79), "a node of the stack has 8 GPUs"),
        ("local", GpuFault(node=1, step=1, gpu=2, xid=79), "or processes in their place: 0 to 1"),
    ],
)
def test_broken_gpu_must_exist(stack: str, fault: GpuFault, message: str) -> None:
    settings = read_stack(Options(project=read_project(ROOT), stack=stack))[1]
    with pytest.raises(InputError, match=message) if message else nullcontext():
        check_faults([fault], settings, "us-east-1", "process")


def test_node_of_a_killed_agent_must_exist() -> None:
    settings = read_stack(Options(project=read_project(ROOT), stack="local"))[1]
    check_faults([AgentKill(node=1, step=1)], settings, "us-east-1", "process")
    with pytest.raises(InputError, match="the stack has nodes 0 to 1"):
        check_faults([AgentHang(node=2, step=1)], settings, "us-east-1", "process")


def test_fault_in_a_zone_of_the_region_and_of_the_heads_type_is_accepted(tmp_path: Path) -> None:
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    faults = parse_faults(["capacity,limit=1,instance_type=t3.large,zone=eu-west-1a"])
    check_faults(faults, load_settings(raw, tmp_path, "x"), "eu-west-1", "process")


def test_fault_of_a_booted_node_needs_its_backend(tmp_path: Path) -> None:
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    raw = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    fault = DiskFull(node=0, seconds=1)
    settings = load_settings(raw, tmp_path, "x")
    check_faults([fault], settings, "us-east-1", "nspawn")
    with rejects("invalid_fault", "nodes of the backend process cannot have this fault", "BACKEND=nspawn"):
        check_faults([fault], settings, "us-east-1", "process")
