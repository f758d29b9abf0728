"""The faults of a chaos run."""

import pytest

from rehearsal.aws.faults import SpotInterruption
from rehearsal.chaos.schedule import SLOW_NODE_SECONDS, fault_kinds, plan_faults
from rehearsal.fault_effects import fault_kind
from rehearsal.faults import check_faults, format_fault, parse_faults
from rehearsal.run_faults.clocks import ClockStep
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.network import NetworkPartition
from rehearsal.run_faults.slow_nodes import NodeSlow
from rehearsal.workspace import Options, read_stack
from tests.machines import ROOT
from trainyard.config.project import read_project
from trainyard.config.settings import StackSettings
from trainyard.models.report import BackendName


def settings_of(stack: str) -> StackSettings:
    return read_stack(Options(project=read_project(ROOT), stack=stack))[1]


def test_same_seed_has_the_same_faults() -> None:
    settings = settings_of("local")
    assert plan_faults(7, 10, 120, settings, "process") == plan_faults(7, 10, 120, settings, "process")
    assert plan_faults(7, 10, 120, settings, "process") != plan_faults(8, 10, 120, settings, "process")


def test_one_fault_occurs_in_each_period_except_after_a_slow_node() -> None:
    faults = plan_faults(1, 60, 120, settings_of("local"), "process")
    periods = [int(fault.after // 120) for fault in faults]
    lasting = [2 if isinstance(fault.fault, NodeSlow) else 1 for fault in faults]
    assert 2 in lasting
    assert periods == [sum(lasting[:position]) for position in range(len(faults))]


def test_slow_node_has_time_to_be_replaced() -> None:
    settings = settings_of("local")
    plans = [plan_faults(seed, 4, 60, settings, "process") for seed in range(50)]
    slow = [fault for plan in plans for fault in plan if isinstance(fault.fault, NodeSlow)]
    assert slow
    assert all(fault.after + SLOW_NODE_SECONDS < 4 * 60 + 60 for fault in slow)


@pytest.mark.parametrize("backend", ["process", "nspawn"])
def test_each_kind_occurs_before_one_is_repeated(backend: BackendName) -> None:
    settings = settings_of("local")
    kinds = fault_kinds(settings, backend)
    periods = len(kinds) + 2  # a slow node needs three
    faults = [fault_kind(format_fault(each)) for each in plan_faults(3, periods, 60, settings, backend)]
    assert len(faults) == len(set(faults)) == len(kinds)


@pytest.mark.parametrize("stack", ["local", "a100-cluster", "spot-cluster"])
@pytest.mark.parametrize("backend", ["process", "nspawn"])
def test_faults_are_valid_for_the_stack(stack: str, backend: BackendName) -> None:
    settings = settings_of(stack)
    faults = plan_faults(1, 50, 60, settings, backend)
    check_faults(faults, settings, "us-east-1", backend)
    assert parse_faults(map(format_fault, faults)) == tuple(faults)
    kinds = {type(each.fault) for each in faults}
    assert (GpuFault in kinds) == (settings.worker_type.gpu is not None)
    assert (SpotInterruption in kinds) == (stack == "spot-cluster")
    assert (NetworkPartition in kinds, ClockStep in kinds) == (backend == "nspawn", backend == "process")
