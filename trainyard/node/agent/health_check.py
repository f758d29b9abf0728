"""One health check on this node: torchrun runs `trainyard.node.health_check`; its files become the node's report.

It runs where the job will, in its container too: an image has torch, NCCL and an OFI plugin of its own.

A node is blamed only for what is its own: a peer that did not come is the peer's fault, and what no node could end
together is nobody's alone.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.models.events import RankFailure, VerificationEvent
from trainyard.models.health_check import Fault, Measured
from trainyard.models.layout import check_source
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.models.run import Check, RunRecord
from trainyard.node.agent.processes import Torchrun, job_python
from trainyard.node.agent.torchrun import network_variables, torchrun_command
from trainyard.node.controller.failure_analysis import is_echo
from trainyard.node.health_check import notes as stages
from trainyard.node.health_check.nccl_log import Network, logs_in, network_of
from trainyard.node.health_check.notes import NEIGHBOURS_SHARE, Notes, read_notes
from trainyard.node.identity import BASE, Node

# What torchrun logs of its way, at INFO: by these it is known whether this node or others did not come.
_JOINED, _MET = "Rendezvous'ing worker group", "Rendezvous complete for workers"
_RENDEZVOUS = "torchrun's rendezvous of all nodes"


@dataclass(frozen=True)
class Findings:
    """Why a node did not come through; all empty where it did."""

    faults: tuple[Fault, ...] = ()
    absent: tuple[str, ...] = ()
    stuck: str | None = None


class CheckRun(Torchrun):
    """A check that runs on this node. It ends when its processes are through or have failed, or at the deadline."""

    def __init__(self, node: Node, manifest: Manifest, group: WorkerGroup, run: RunRecord, check: Check) -> None:
        self.order, self._group, self._run = check, group, run
        self._began, self._seconds = time.monotonic(), run.limits.verify_minutes * 60
        self._each, on_gpu = run.processes_per_node, bool(group.gpus and manifest.node.accelerators)
        folder = check_folder(run, check.number)
        super().__init__(node, manifest, run, folder, lambda name: check_source(check.number, name), "process")
        name, head = f"{run.run}-check-{check.number}", manifest.head
        given = ["--folder", str(folder), "--instance", node.instance, "--check", name]
        given += ["--store", f"{head.address}:{head.rendezvous_port}", "--seconds", f"{self._seconds:g}"]
        command = torchrun_command(
            python=job_python(manifest, run.job.container),
            head=head,
            rendezvous=name,
            processes=self._each,
            nodes=len(check.nodes),
            address=node.address,
            job=["-m", "trainyard.node.health_check", *given, *(["--gpus"] if on_gpu else [])],
            logs=self._logs,
            join_seconds=self._seconds,
        )
        own = {
            "LOGLEVEL": "INFO",  # torchrun's own
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
            "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p",
        }
        image = run.job.container
        variables = network_variables(manifest, group, node.address, image) | dict(run.job.environment) | own
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # the job's own choice: a node is all of its GPUs
        self.start(command, Path(node.bundle), variables, image)

    def over(self) -> bool:
        """Whether there is nothing to wait for. torchrun itself would wait for its peers on other nodes."""
        return self.ended() is not None or self._cut() or self._through(read_notes(self._folder))

    def _cut(self) -> bool:
        return time.monotonic() > self._began + self._seconds

    def _through(self, notes: Sequence[Notes]) -> bool:
        return len(notes) >= self._each and all(one.stage == stages.DONE for one in notes)

    def report(self) -> VerificationEvent:
        """What the node found. Ends whatever of the check still runs, then reads what is left of it."""
        seconds = time.monotonic() - self._began
        failures = () if self.ended() in {None, 0} else self.failures()
        self.kill()
        notes, network = read_notes(self._folder), network_of(logs_in(self._folder))
        for file in sorted(self._folder.glob("nccl.*"))[:1]:  # one process's words stand for those of the node
            self.ship("nccl", file)
        found = conclude(notes, self._each, failures, self.said(), seconds / self._seconds, self._node.instance)
        return report(self._node, self._group, self._run, self.order.number, measured(notes, network, seconds), found)


def check_folder(run: RunRecord, number: int) -> Path:
    return BASE / "runs" / run.run / f"check-{number:04d}"


def report(
    node: Node, group: WorkerGroup, run: RunRecord, number: int, found: Measured, why: Findings
) -> VerificationEvent:
    return VerificationEvent.model_validate(
        {
            **node.stamp(time.time()),
            "run": run.run,
            "check": number,
            "group": group.name,
            "measured": found,
            "faults": why.faults,
            "absent": why.absent,
            "stuck": why.stuck,
        }
    )


def measured(notes: Sequence[Notes], network: Network, seconds: float) -> Measured:
    """A node's values from those of its processes: the worst where each has one."""
    first = notes[0] if notes else None
    names = sorted({name for one in notes for name in one.gpu_names})
    together = all(one.network_gbs is not None for one in notes) and bool(notes)
    return Measured(
        gpus=min((one.gpus for one in notes), default=0),
        gpu_names=tuple(names),
        driver=first.driver if first else None,
        cuda=first.cuda if first else None,
        nccl=first.nccl if first else None,
        torch=first.torch if first else None,
        network=network.name or ("gloo" if together and first and first.backend == "gloo" else None),
        provider=network.provider,
        efa_devices=network.devices if network.provider == "efa" else None,
        matmul_tflops=_least(one.matmul_tflops for one in notes),
        nvlink_gbs=_least(one.nvlink_gbs for one in notes),
        network_gbs=_least(one.network_gbs for one in notes),
        seconds=round(seconds, 1),
    )


def _least(values: Iterable[float | None]) -> float | None:
    """To three digits; none where nobody came to it."""
    least = min((value for value in values if value is not None), default=None)
    return None if least is None else float(f"{least:.3g}")


def conclude(
    notes: Sequence[Notes], each: int, failures: Iterable[RankFailure], torchrun: str, share: float, node: str
) -> Findings:
    """Why a node did not come through. `torchrun`: what torchrun wrote; `share`: of the check's time that is over."""
    if len(notes) >= each and all(one.stage == stages.DONE for one in notes):
        return Findings()
    by_rank = {int(one.file.stem.rpartition("-")[2]): one for one in notes}
    absent = {name for one in notes for name in one.absent}
    faults: dict[int, Fault] = {}
    for failure in failures:
        local = failure.rank % each
        one = by_rank.get(local)
        if failure.exitcode == -15 or (one is not None and one.absent):
            continue  # torchrun ended it for the sake of another; or it waited for somebody
        stage = one.stage if one else stages.START
        if stage in stages.OF_THE_NODE or not is_echo(failure.message):
            faults[local] = Fault(kind="crashed", text=f"process {local} failed ({stage}): {failure.message}")
    if share >= NEIGHBOURS_SHARE and not faults:
        for local, one in by_rank.items():
            if one.stage in stages.OF_THE_NODE and not one.absent:
                faults[local] = Fault(kind="hung", text=f"process {local} did not end: {one.stage}")
    if not notes and not faults:
        faults.update(_before(torchrun))
    if faults:
        return Findings(tuple(faults[local] for local in sorted(faults)), tuple(sorted(absent - {node})))
    if absent - {node}:
        return Findings(absent=tuple(sorted(absent - {node})))
    unfinished = next((one.stage for one in notes if one.stage != stages.DONE), _RENDEZVOUS)
    return Findings(stuck=unfinished)


def _before(torchrun: str) -> dict[int, Fault]:
    """What torchrun came to, where no process of this node has begun; nothing where it waited for others."""
    if _MET in torchrun:
        return {0: Fault(kind="hung", text="no process began, though all nodes had met")}
    if _JOINED in torchrun:
        return {}
    last = next((line for line in reversed(torchrun.splitlines()) if line.strip()), "it wrote nothing")
    return {0: Fault(kind="crashed", text=f"torchrun did not come as far as its rendezvous: {last[:400]}")}
