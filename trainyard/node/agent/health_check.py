"""One health check on this node: torchrun runs `trainyard.node.health_check`, whose files become the node's result.

It runs in the environment of the job, also in its container: an image has its own torch, NCCL and OFI plugin. Packages
and image are those of the user, so its unit has the same restrictions as that of an attempt.

A node has a fault only if its own processes fail. If a peer does not arrive, the fault is attributed to that peer. If
no node completes a stage, the fault is not attributed to a single node.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.models.events import HealthCheckEvent, RankFailure
from trainyard.models.health_check import NodeFault, NodeMeasurements
from trainyard.models.layout import health_check_source
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.models.run import HealthCheckRequest, RunRecord
from trainyard.node.agent.health_check_files import find_logs, read_logs, read_reports
from trainyard.node.agent.job_container import container_variables, in_container
from trainyard.node.agent.job_process import LOG
from trainyard.node.agent.job_unit import HEALTH_CHECK_PREFIX, JobUnit, Launch
from trainyard.node.agent.processes import (
    Torchrun,
    home_folder,
    home_variables,
    job_python,
)
from trainyard.node.agent.torchrun import network_variables, torchrun_command
from trainyard.node.controller.failure_analysis import is_caused_by_peer
from trainyard.node.health_check import stages
from trainyard.node.health_check.nccl_log import Network, slowest_network
from trainyard.node.health_check.process_report import ProcessReport
from trainyard.node.identity import BASE, Node
from trainyard.node.job_user import create_job_folder, find_job_user

# Messages that torchrun logs at level INFO: they show whether this node or other nodes did not reach the rendezvous.
_RENDEZVOUS_STARTED, _RENDEZVOUS_COMPLETE = "Rendezvous'ing worker group", "Rendezvous complete for workers"
_RENDEZVOUS = "torchrun's rendezvous of all nodes"


@dataclass(frozen=True)
class Findings:
    """Why a node did not pass a health check; all fields are empty if it passed."""

    faults: tuple[NodeFault, ...] = ()
    missing_peers: tuple[str, ...] = ()
    incomplete_stage: str | None = None


class HealthCheckTorchrun(Torchrun):
    """torchrun of one health check. It is over when its processes have completed or failed, or at its deadline."""

    def __init__(
        self, node: Node, manifest: Manifest, group: WorkerGroup, run: RunRecord, request: HealthCheckRequest
    ) -> None:
        self.request, self._group, self._run = request, group, run
        self._started_at, self._timeout_seconds = time.monotonic(), run.limits.health_check_timeout_minutes * 60
        folder, user, image = health_check_folder(run, request.number), find_job_user(), run.job.container
        # The client of a container needs root; the processes in the container do not.
        self._unit = JobUnit(run.run, request.number, folder, None if image else user, HEALTH_CHECK_PREFIX)
        super().__init__(
            node,
            manifest,
            run,
            folder,
            self._unit.files / LOG,
            lambda name: health_check_source(request.number, name),
            "process",
            user=user,
        )
        self.reports = folder / "reports"
        writable = (self._logs, self.reports, home_folder())
        for each in writable:
            create_job_folder(each, user)
        command = in_container(image, self._command(manifest), writable)
        variables = container_variables(image, self._variables(manifest))
        self._unit.start(command, Path(node.bundle), variables, Launch(writable, in_container=image is not None))

    def _command(self, manifest: Manifest) -> list[str]:
        request, run, on_gpu = self.request, self._run, bool(self._group.gpus and manifest.node.use_gpus)
        instance = self._node.instance
        arguments = ["--folder", str(self.reports), "--instance", instance, "--first-node", request.nodes[0]]
        arguments += ["--timeout-seconds", f"{self._timeout_seconds:g}"]
        return torchrun_command(
            python=job_python(manifest, run.job.container),
            nodes=request.nodes,
            instance=instance,
            master=request.master,
            rendezvous=f"{run.run}-check-{request.number}",
            processes=self._processes,
            job=["-m", "trainyard.node.health_check", *arguments, *(["--gpus"] if on_gpu else [])],
            logs=self._logs,
            join_seconds=self._timeout_seconds,
        )

    def _variables(self, manifest: Manifest) -> dict[str, str]:
        job = self._run.job
        variables = network_variables(manifest, self._group, self._node.address, job.container) | dict(job.environment)
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # a health check uses all GPUs of the node
        health_check_variables = {
            "LOGLEVEL": "INFO",  # that of torchrun
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
            "NCCL_DEBUG_FILE": f"{self.reports}/nccl.%h.%p",
        }
        return variables | health_check_variables | home_variables(self._user)

    @property
    def process_id(self) -> int:
        """Id of the process whose child is torchrun."""
        return self._unit.process_id

    def exit_code(self) -> int | None:
        """Exit code of torchrun; None while it runs."""
        return self._unit.exit_code()

    def kill(self) -> None:
        """Kill torchrun and its processes with SIGKILL: they have no state to save, and may ignore SIGTERM.

        Raises OSError if systemd does not end the unit.
        """
        self._unit.kill()

    def is_over(self) -> bool:
        """Whether the result of this node is final. torchrun itself would wait for its peers on other nodes."""
        expired = time.monotonic() > self._started_at + self._timeout_seconds
        return self.exit_code() is not None or expired or are_complete(self._read_reports(), self._processes)

    def _read_reports(self) -> list[ProcessReport]:
        return read_reports(self.reports, self._processes)

    def result_event(self) -> HealthCheckEvent:
        """Stop all processes of the health check and create the event with the result of this node."""
        seconds = time.monotonic() - self._started_at
        failures = () if self.exit_code() in {None, 0} else self.failures()
        self.kill()
        reports, network = self._read_reports(), slowest_network(read_logs(self.reports, self._processes))
        for file in find_logs(self.reports, 1):  # the log of one process is enough
            self.follow_file("nccl", file)
        elapsed_share = seconds / self._timeout_seconds
        findings = find_faults(reports, self._processes, failures, self.output(), elapsed_share, self._node.instance)
        measurements = merge_measurements(reports, network, seconds)
        return create_event(self._node, self._group, self._run, self.request.number, measurements, findings)


def health_check_folder(run: RunRecord, number: int) -> Path:
    """Folder of the files of one health check on this node."""
    return BASE / "runs" / run.run / f"check-{number:04d}"


def create_event(
    node: Node, group: WorkerGroup, run: RunRecord, number: int, measurements: NodeMeasurements, findings: Findings
) -> HealthCheckEvent:
    """Event with the result of this node in one health check."""
    return HealthCheckEvent.model_validate(
        {
            **node.event_fields(time.time()),
            "run": run.run,
            "number": number,
            "group": group.name,
            "measurements": measurements,
            "faults": findings.faults,
            "missing_peers": findings.missing_peers,
            "incomplete_stage": findings.incomplete_stage,
        }
    )


def merge_measurements(reports: Sequence[ProcessReport], network: Network, seconds: float) -> NodeMeasurements:
    """Measurements of a node from those of its processes: the worst of each value."""
    first = reports[0] if reports else None
    names = sorted({name for report in reports for name in report.gpu_names})
    all_reduced = all(report.network_gbs is not None for report in reports) and bool(reports)
    return NodeMeasurements(
        gpus=min((report.gpus for report in reports), default=0),
        gpu_names=tuple(names),
        driver=first.driver if first else None,
        cuda=first.cuda if first else None,
        nccl=first.nccl if first else None,
        torch=first.torch if first else None,
        network=network.name or ("gloo" if all_reduced and first and first.backend == "gloo" else None),
        provider=network.provider,
        efa_devices=network.devices if network.provider == "efa" else None,
        matmul_tflops=_minimum(report.matmul_tflops for report in reports),
        nvlink_gbs=_minimum(report.nvlink_gbs for report in reports),
        network_gbs=_minimum(report.network_gbs for report in reports),
        seconds=round(seconds, 1),
    )


def _minimum(values: Iterable[float | None]) -> float | None:
    """Minimum, rounded to three digits; None if there is no value."""
    minimum = min((value for value in values if value is not None), default=None)
    return None if minimum is None else float(f"{minimum:.3g}")


def are_complete(reports: Sequence[ProcessReport], processes: int) -> bool:
    """Whether all processes of this node have completed all stages."""
    return len(reports) >= processes and all(report.stage == stages.DONE for report in reports)


def find_faults(
    reports: Sequence[ProcessReport],
    processes: int,
    failures: Iterable[RankFailure],
    torchrun_output: str,
    elapsed_share: float,
    node: str,
) -> Findings:
    """Why a node did not pass. `elapsed_share`: share of the health check's timeout that has passed."""
    if are_complete(reports, processes):
        return Findings()
    by_rank = {int(report.file.stem.rpartition("-")[2]): report for report in reports}
    missing = {name for report in reports for name in report.missing_peers}
    faults: dict[int, NodeFault] = {}
    for failure in failures:
        local_rank = failure.rank % processes
        process = by_rank.get(local_rank)
        if failure.exitcode == -15 or (process is not None and process.missing_peers):
            continue  # torchrun stopped it because another process failed, or it waited for a peer
        stage = process.stage if process else stages.START
        if stage in stages.NODE_STAGES or not is_caused_by_peer(failure.message):
            text = f"process {local_rank} failed ({stage}): {failure.message}"
            faults[local_rank] = NodeFault(kind="crashed", text=text)
    if elapsed_share >= stages.NEIGHBOR_TIMEOUT_SHARE and not faults:
        for local_rank, report in by_rank.items():
            if report.stage in stages.NODE_STAGES and not report.missing_peers:
                text = f"process {local_rank} did not complete: {report.stage}"
                faults[local_rank] = NodeFault(kind="hung", text=text)
    if not reports and not faults:
        faults.update(_find_start_faults(torchrun_output))
    missing_peers = tuple(sorted(missing - {node}))
    if faults:
        return Findings(tuple(faults[local_rank] for local_rank in sorted(faults)), missing_peers)
    if missing_peers:
        return Findings(missing_peers=missing_peers)
    incomplete = next((report.stage for report in reports if report.stage != stages.DONE), _RENDEZVOUS)
    return Findings(incomplete_stage=incomplete)


def _find_start_faults(torchrun_output: str) -> dict[int, NodeFault]:
    """Faults of a node on which no process has started; none if torchrun waited for other nodes."""
    if _RENDEZVOUS_COMPLETE in torchrun_output:
        return {0: NodeFault(kind="hung", text="no process started after the rendezvous of all nodes")}
    if _RENDEZVOUS_STARTED in torchrun_output:
        return {}
    last = next((line for line in reversed(torchrun_output.splitlines()) if line.strip()), "no output")
    return {0: NodeFault(kind="crashed", text=f"torchrun did not reach its rendezvous: {last[:400]}")}
