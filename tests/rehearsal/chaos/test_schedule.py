"""The faults of a chaos run."""

import pytest

from rehearsal.aws.faults import SpotInterruption
from rehearsal.chaos.schedule import fault_kinds, plan_faults
from rehearsal.faults import check_faults, format_fault, parse_faults
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.workspace import Options, read_stack
from tests.machines import ROOT
from trainyard.config.project import read_project
from trainyard.config.settings import StackSettings


def settings_of(stack: str) -> StackSettings:
    return read_stack(Options(project=read_project(ROOT), stack=stack))[1]


def test_same_seed_has_the_same_faults() -> None:
    settings = settings_of("local")
    assert plan_faults(7, 10, 120, settings) == plan_faults(7, 10, 120, settings)
    assert plan_faults(7, 10, 120, settings) != plan_faults(8, 10, 120, settings)


def test_one_fault_occurs_in_each_period() -> None:
    faults = plan_faults(1, 10, 120, settings_of("local"))
    assert [int(fault.after // 120) for fault in faults] == [0, 1, 2, 3, 4]


def test_each_kind_occurs_before_one_is_repeated() -> None:
    settings = settings_of("local")
    count = len(fault_kinds(settings))
    faults = [
        type(each.fault).__name__ + getattr(each.fault, "service", "") for each in plan_faults(3, count, 60, settings)
    ]
    assert len(set(faults)) == count - 1  # of ranks that are killed there are two kinds


@pytest.mark.parametrize("stack", ["local", "a100-cluster", "spot-cluster"])
def test_faults_are_valid_for_the_stack(stack: str) -> None:
    settings = settings_of(stack)
    faults = plan_faults(1, 40, 60, settings)
    check_faults(faults, settings, "us-east-1", "process")
    assert parse_faults(map(format_fault, faults)) == tuple(faults)
    kinds = {type(each.fault) for each in faults}
    assert (GpuFault in kinds) == (settings.worker_type.gpu is not None)
    assert (SpotInterruption in kinds) == (stack == "spot-cluster")
