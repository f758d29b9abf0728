"""A broken GPU: what the sensors of its node read, and which ranks end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from rehearsal.aws.faults import Fault
from rehearsal.faults import format_fault
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.process import nvidia_smi as nvidia_smi_module
from rehearsal.hypervisor.process.gpus import create_gpus, set_module_path
from rehearsal.hypervisor.process.nvml import pynvml
from rehearsal.hypervisor.processes import is_alive, send_signal
from rehearsal.run_faults.gpus import GpuFault, write_kernel_log
from rehearsal.run_faults.injection import FaultInjector, ScheduledFault
from rehearsal.run_faults.job import find_ranks
from rehearsal.run_faults.nodes import BootHang
from rehearsal.run_faults.ranks import RankKill
from tests.machines import ROOT
from tests.metrics import metric
from tests.polling import eventually
from trainyard.aws.s3 import Bucket
from trainyard.models.run import Control
from trainyard.node.agent.state import AGENT_STATE, AgentStateFile
from trainyard.node.health.kernel_log import KernelLog
from trainyard.node.health.nvml import Nvml

RUN = f"run-{os.getpid()}"  # other sessions may run this test


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root folder of a node with two GPUs, whose NVML this process uses."""
    monkeypatch.setenv("TRAINYARD_ROOT", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    return create_root(tmp_path)


def create_root(folder: Path) -> Path:
    """Create the root folder of a node with two GPUs."""
    (folder / "run").mkdir(parents=True, exist_ok=True)
    create_gpus(folder, 2)
    return folder


@pytest.fixture
def rank(root: Path) -> Iterator[psutil.Popen]:
    """A rank on that node."""
    process = start_rank(root, 1)
    yield process
    send_signal(process, signal.SIGKILL)
    process.wait()


def readings(root: Path) -> set[tuple[str, str | None]]:
    return {(reading.rule.name, reading.device) for sensor in (KernelLog(root), Nvml(2)) for reading in sensor.read()}


def test_healthy_node_has_no_findings(root: Path) -> None:
    assert readings(root) == set()


@pytest.mark.parametrize(
    ("fault", "rules", "ends"),
    [
        (GpuFault(node=1, step=1, gpu=1, xid=79), {"gpu-lost"}, True),
        (GpuFault(node=1, step=1, gpu=1, xid=63), {"row-remap-pending"}, False),
        (GpuFault(node=1, step=1, gpu=1, xid=94), {"gpu-memory-error", "row-remap-pending"}, True),
        (GpuFault(node=1, step=1, gpu=1, xid=119), {"gpu-fault", "recovery-reset"}, True),
        (GpuFault(node=1, step=1, gpu=1, xid=154), {"recovery-reboot"}, True),
        (GpuFault(node=1, step=1, gpu=1, xid=31), {"application-fault"}, True),
        (GpuFault(node=1, step=1, gpu=1, condition="row-remap-failed"), {"row-remap-failed"}, False),
        (GpuFault(node=1, step=1, gpu=1, condition="thermal"), {"thermal-slowdown"}, False),
        (GpuFault(node=1, step=1, gpu=1, condition="nvlink"), {"nvlink-error"}, False),
    ],
)
def test_fault_is_seen_by_the_sensors_and_ends_ranks(
    root: Path, rank: psutil.Popen, fault: GpuFault, rules: set[str], ends: bool
) -> None:
    fault.break_gpu(root)
    if fault.is_fatal:
        fault.end_ranks([rank])
    assert readings(root) == {(rule, "GPU 1") for rule in rules}
    if ends:
        assert rank.wait(10) == -signal.SIGABRT
    else:
        assert rank.is_running()


def test_rank_has_the_node_of_its_torchrun(root: Path, rank: psutil.Popen) -> None:
    eventually(lambda: bool(find_ranks(RUN)), "the environment of the rank")
    ((number, result),) = find_ranks(RUN).items()
    assert (number, result.process.pid, result.node, result.instance) == (1, rank.pid, 1, "i-1")
    assert result.root.samefile(root)


def test_node_without_gpus_gets_a_kernel_log_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/code")
    create_gpus(tmp_path, 0)
    set_module_path(tmp_path)
    assert "PYTHONPATH" not in os.environ
    write_kernel_log(tmp_path, "NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus.")
    assert [reading.rule.name for reading in KernelLog(tmp_path).read()] == ["gpu-lost"]


def test_module_path_of_a_node_with_gpus_has_only_nvml(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/code")
    set_module_path(root)
    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert result.stdout == "2\n"


def test_reset_repairs_all_gpus_but_a_lost_one_unless_ranks_run(root: Path, rank: psutil.Popen) -> None:
    GpuFault(node=1, gpu=0, xid=119).break_gpu(root)
    GpuFault(node=1, gpu=1, condition="row-remap-pending").break_gpu(root)
    assert nvidia_smi("--query-compute-apps=pid", "--format=csv,noheader") == (0, f"{rank.pid}\n")
    assert nvidia_smi("--gpu-reset") == (19, "GPU is in use by another client.\n")
    send_signal(rank, signal.SIGKILL)
    rank.wait()
    assert nvidia_smi("--gpu-reset") == (0, "")
    assert [reading.rule.name for reading in Nvml(2).read()] == []
    GpuFault(node=1, gpu=1, xid=79).break_gpu(root)
    assert nvidia_smi("--gpu-reset")[0] == 15
    assert [reading.rule.name for reading in Nvml(2).read()] == ["gpu-lost"]


def test_rank_of_a_lost_node_is_never_killed(tmp_path: Path) -> None:
    bucket, hypervisor = MetricsOfStep(3), cast(Hypervisor, None)
    bucket.control = Control(attempt=1, nodes=("i-1",), waiting_since=1.0)
    lost, kill = start_rank(tmp_path / "lost", 0, "i-1"), ScheduledFault(RankKill(rank=0))
    faults = FaultInjector([kill], cast(Bucket, bucket), RUN, hypervisor, refuse_account_fault, format_fault)
    assert faults.inject_due() == []  # between two attempts
    replacement = start_rank(tmp_path / "replacement", 0, "i-2")
    bucket.control = Control(attempt=2, nodes=("i-2",))
    try:
        eventually(lambda: bool(faults.inject_due()), "the rank of the next attempt")
        assert replacement.wait(20) == -signal.SIGKILL
        assert is_alive(lost)
    finally:
        for rank in (lost, replacement):
            send_signal(rank, signal.SIGKILL)
            rank.wait()


def nvidia_smi(*arguments: str) -> tuple[int, str]:
    """Run nvidia-smi on the node; return exit status and stdout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(nvidia_smi_module.__file__), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return result.returncode, result.stdout


def test_ranks_that_start_later_on_a_node_without_its_gpu_end_too(root: Path) -> None:
    first, second, third = (create_root(root / name) for name in ("first", "second", "third"))
    ranks = [start_rank(first, 0), start_rank(second, 1)]
    lost = ScheduledFault(GpuFault(node=1, step=3, xid=79))
    bucket, hypervisor = cast(Bucket, MetricsOfStep(3)), cast(Hypervisor, None)
    faults = FaultInjector([lost], bucket, RUN, hypervisor, refuse_account_fault, format_fault)
    try:
        with faults.injecting():
            assert ranks[1].wait(20) == -signal.SIGABRT
            ranks += [start_rank(second, 1), start_rank(third, 2)]
            assert ranks[2].wait(20) == -signal.SIGABRT
        assert faults.remaining == []
        (injection,) = faults.injections
        assert injection.fault == "gpu,node=1,xid=79,step=3"
        assert (injection.nodes, injection.checkpoint) == (("i-1",), "step-00000002")
        assert [is_alive(rank) for rank in (ranks[0], ranks[3])] == [True, True]
    finally:
        for rank in ranks:
            send_signal(rank, signal.SIGKILL)
            rank.wait()


def test_failed_injection_is_an_error_of_the_rehearsal(root: Path) -> None:
    bucket = cast(Bucket, MetricsOfStep(3))
    faults = FaultInjector(
        [ScheduledFault(BootHang())], bucket, RUN, cast(Hypervisor, None), refuse_account_fault, format_fault
    )
    with faults.injecting():
        eventually(lambda: bool(faults.errors), "the error")
    (error,) = faults.errors
    assert error.startswith("the injection of faults failed: AttributeError")
    assert len(faults.remaining) == 1


class MetricsOfStep:
    """A bucket with the newest metric line and the requests of the controller."""

    def __init__(self, step: int) -> None:
        self.line, self.control = metric(step), Control(attempt=1, nodes=("i-0", "i-1"))

    def find(self, key: str) -> bytes:
        return (self.control if key.endswith("control.json") else self.line).model_dump_json().encode()

    def keys(self, prefix: str) -> list[str]:
        return [f"{prefix}step-00000002/.metadata", f"{prefix}step-00000003/rank-0"]


def refuse_account_fault(fault: Fault) -> None:
    raise AssertionError(f"{fault} is injected into the account")


def start_rank(root: Path, node: int, instance: str = "") -> psutil.Popen:
    """Start the only rank of the run on a node. `instance`: by default the number of the node."""
    folder = root / "opt/trainyard/runs" / RUN
    AgentStateFile(folder / AGENT_STATE).update(first_rank=node)
    log = folder / "attempt-0001/logs/0/attempt_0/0/stderr.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {"TRAINYARD_RUN": RUN, "TRAINYARD_NODE": instance or f"i-{node}", "TRAINYARD_ROOT": str(root)}
    with log.open("w") as stderr:
        return psutil.Popen(["sleep", "60"], env=os.environ | variables, stderr=stderr)
