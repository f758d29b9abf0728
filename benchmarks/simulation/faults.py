"""Faults of hosts and of the job's software: what they look like, and when they happen."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.node.health import rules
from trainyard.node.health.rules import Rule

DAY = 86400.0
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """What a fault does to a job, and what shows it.

    `effect`: crash: a rank on the node fails with `message`. hang: all ranks hang, and the job's watchdog names a rank
    of the node. stall: all ranks hang in an operation that all have started. lost: the node is silent. retired: AWS
    retires the instance, and its group replaces it. `finding`: rule of the node's health monitor. `ended_by`: what ends
    the fault, besides its end time: the end of the attempt, a reset, a reboot, or nothing. `fails_check`: whether a
    health check of the node fails.
    """

    effect: Literal["crash", "hang", "stall", "lost", "retired"]
    message: str = ""
    finding: Rule | None = None
    ended_by: Literal["attempt", "reset", "reboot", "nothing"] = "nothing"
    fails_check: bool = True


_CUDA = "torch.AcceleratorError: CUDA error:"
# A finding, and the failure of the rank that used the device.
GPU_LOST = FaultKind(effect="crash", message=f"{_CUDA} unspecified launch failure", finding=rules.GPU_LOST)
GPU_FAULT = FaultKind(
    effect="crash", message=f"{_CUDA} unspecified launch failure", finding=rules.GPU_FAULT, ended_by="reset"
)
GPU_MEMORY = FaultKind(
    effect="crash", message=f"{_CUDA} uncorrectable ECC error encountered", finding=rules.GPU_MEMORY, ended_by="reset"
)
GPU_MEMORY_WORN = FaultKind(  # the threshold of the trace: the errors return after a reset
    effect="crash", message=f"{_CUDA} uncorrectable ECC error encountered", finding=rules.GPU_MEMORY
)
EFA_DOWN = FaultKind(effect="hang", finding=rules.EFA_DOWN)
EFA_MISSING = FaultKind(effect="hang", finding=rules.EFA_MISSING)
DISK = FaultKind(
    effect="crash", message="OSError: [Errno 30] Read-only file system", finding=rules.FILESYSTEM_READ_ONLY
)
DRIVER_HANGS = FaultKind(effect="hang", finding=rules.SENSOR_HANGS)
# No finding: only the job or a health check notices the fault.
GPU_CRASH = FaultKind(effect="crash", message=f"{_CUDA} unknown error")
HIDDEN_CRASH = FaultKind(effect="crash", message=f"{_CUDA} unknown error", fails_check=False)
NODE_HANG = FaultKind(effect="hang")
HIDDEN_HANG = FaultKind(effect="hang", fails_check=False)
NETWORK_FLAP = FaultKind(effect="stall", ended_by="attempt", fails_check=False)
SOFTWARE = FaultKind(effect="crash", message="RuntimeError: bug", ended_by="attempt", fails_check=False)
# The node does not respond, or AWS retires it: an operator took the server offline although the job may have continued.
LOST = FaultKind(effect="lost")
RETIRED = FaultKind(effect="retired", fails_check=False)


@dataclass(frozen=True)
class Fault:
    """A fault of a host. `host`: its name; None: that of a random node of the job. `end`: seconds since the start."""

    kind: FaultKind
    cause: str
    start: float
    end: float
    host: str | None = None


# Class and description in the trace -> kind; "": any other description of the class.
_TRACE_KINDS: Mapping[tuple[str, str], FaultKind] = {
    ("GPU", "GPU DBE(Double Bit ECC) > Threshold"): GPU_MEMORY_WORN,
    ("GPU", "GPU xid Error"): GPU_FAULT,
    ("GPU", "GPU Lost"): GPU_LOST,
    ("GPU", "GPU device not found"): GPU_LOST,
    ("GPU", "GPU device unknow error"): GPU_CRASH,
    ("GPU", "nvidia-smi Timeout"): DRIVER_HANGS,
    ("GPU", ""): RETIRED,
    ("Parameter Plane Cable", ""): EFA_DOWN,
    ("NIC", "NIC Lost"): EFA_MISSING,
    ("NIC", "Rnic Gid Error"): NODE_HANG,
    ("NIC", ""): RETIRED,
    ("File System", ""): DISK,
    ("Operating System", ""): LOST,
    ("System Crash", ""): LOST,
    ("Power Supply", ""): LOST,
    ("Motherboard", ""): LOST,
    ("CPU", ""): LOST,
    ("RAID Card", ""): LOST,
    ("Riser Card", ""): LOST,
    ("Stress Test Failure", ""): GPU_CRASH,
    ("Fan", ""): RETIRED,
    ("Motherboard Battery", ""): RETIRED,
    ("Software Tool", ""): RETIRED,
    ("Firmware", ""): RETIRED,
    ("Change", ""): RETIRED,
    ("Test", ""): RETIRED,
    ("Training Task Troubleshooting", ""): NODE_HANG,
}
# Faults without a known cause are of each of these kinds, in equal parts.
_UNKNOWN = (GPU_CRASH, HIDDEN_CRASH, NODE_HANG, LOST)


def read_trace(file: Path, seed: int) -> list[Fault]:
    """Return the faults of an InfiniteHBD trace, in the order of their start. A fault without an end is permanent."""
    generator = random.Random(seed)
    faults: list[Fault] = []
    started: dict[tuple[str, ...], list[tuple[float, FaultKind]]] = {}
    for event in json.loads(file.read_text()):
        level, kind, text = (event["fault_type"][name] for name in ("Level", "Class", "Desc"))
        key, at = (event["node_id"], level, kind, text), event["event_time"] * DAY
        if event["event_type"] == "fault_start":
            known = _TRACE_KINDS.get((kind, text)) or _TRACE_KINDS.get((kind, ""))
            started.setdefault(key, []).append((at, known or generator.choice(_UNKNOWN)))
        else:
            start, effect = started[key].pop(0)
            faults.append(Fault(effect, f"{kind}: {text}", start, at, key[0]))
    for (host, _, name, text), open_faults in started.items():
        faults += [Fault(effect, f"{name}: {text}", at, float("inf"), host) for at, effect in open_faults]
    return sorted(faults, key=lambda fault: (fault.start, fault.host or ""))


# "The Llama 3 Herd of Models", https://arxiv.org/abs/2407.21783, table 5: cause, interruptions in 54 days on 16,384
# GPUs, and the kind by which it is simulated.
LLAMA_DAYS, LLAMA_NODES = 54, 2048
LLAMA_CAUSES: tuple[tuple[str, int, tuple[FaultKind, ...]], ...] = (
    ("Faulty GPU", 148, (GPU_LOST, GPU_FAULT, GPU_CRASH)),
    ("GPU HBM3 Memory", 72, (GPU_MEMORY,)),
    ("Software Bug", 54, (SOFTWARE,)),
    ("Network Switch/Cable", 35, (NETWORK_FLAP, EFA_DOWN)),
    ("Host Maintenance", 32, (RETIRED,)),
    ("GPU SRAM Memory", 19, (GPU_MEMORY,)),
    ("GPU System Processor", 17, (GPU_FAULT,)),
    ("NIC", 7, (EFA_MISSING,)),
    ("NCCL Watchdog Timeouts", 7, (NETWORK_FLAP, HIDDEN_HANG)),
    ("Silent Data Corruption", 6, (HIDDEN_CRASH,)),
    ("GPU Thermal Interface + Sensor", 6, (GPU_CRASH,)),
    ("SSD", 3, (DISK,)),
    ("Power Supply", 3, (LOST,)),
    ("Server Chassis", 2, (LOST,)),
    ("IO Expansion Board", 2, (LOST,)),
    ("Dependency", 2, (SOFTWARE,)),
    ("CPU", 2, (LOST,)),
    ("System Memory", 2, (LOST,)),
)


def poisson_faults(seed: int, seconds: float, nodes: int) -> Iterator[Fault]:
    """Yield faults at Llama 3's rate for this number of nodes. A broken host is repaired after a day."""
    generator = random.Random(seed)
    total = sum(number for _, number, _ in LLAMA_CAUSES)
    rate = total / (LLAMA_DAYS * DAY) * nodes / LLAMA_NODES
    weights = [number for _, number, _ in LLAMA_CAUSES]
    at = generator.expovariate(rate)
    while at < seconds:
        cause, _, kinds = generator.choices(LLAMA_CAUSES, weights)[0]
        yield Fault(generator.choice(kinds), cause, at, at + DAY)
        at += generator.expovariate(rate)
