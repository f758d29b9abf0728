"""torchrun of one attempt on this node: the job's sources, variables, metrics and requested checkpoints."""

import hashlib
import io
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from trainyard.archives import extract_archive
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket
from trainyard.config.field_types import HUB_SCHEME
from trainyard.models.events import RankFailure
from trainyard.models.failure_messages import NODE_REBOOTED
from trainyard.models.layout import attempt_source, split_s3_uri
from trainyard.models.manifest import Archive, Job, Manifest, WorkerGroup
from trainyard.models.rank_progress import RankProgress, progress_file
from trainyard.models.run import Control, RunRecord
from trainyard.node.agent.job_container import container_variables, in_container
from trainyard.node.agent.job_process import LOG
from trainyard.node.agent.job_unit import JobUnit, Launch
from trainyard.node.agent.processes import (
    Torchrun,
    cache_folder,
    child_processes,
    home_folder,
    home_variables,
    job_python,
    scratch_folder,
)
from trainyard.node.agent.rank_failures import rank_log_folders
from trainyard.node.agent.state import AgentStateFile
from trainyard.node.agent.torchrun import (
    STANDBY,
    SUPERVISOR,
    TORCHRUN,
    TRAINER_LAUNCHER,
    job_variables,
    torchrun_command,
)
from trainyard.node.environments import model as model_program
from trainyard.node.environments import source as source_environment
from trainyard.node.identity import BASE, MEMORY, Node
from trainyard.node.job_user import (
    JobUser,
    create_job_file,
    create_job_folder,
    delete_job_folder,
    find_job_user,
    read_job_file,
)
from trainyard.node.watchdog import report_progress

LIFECYCLE_HEARTBEAT_SECONDS = 60.0
# Below the folder of an attempt: the request for a checkpoint, a copy of the job's sources, a link to its environment.
REQUEST, WORK, VENV = "requests/checkpoint", "work", "venv"
PROGRESS_BYTES = 1 << 16  # longest progress file
# A rank whose peer has failed may exit within this time, with a message. In NCCL it hangs, and its Python
# handler of SIGTERM does not run: torchrun would wait 30 s for it. It can complete no checkpoint that needs its peers.
RANK_EXIT_SECONDS = 2.0
# The same for the ranks of a node where one is writing a checkpoint without its peers, by its progress file. It is less
# than FAILURE_REPORT_TIMEOUT_SECONDS of the controller.
SAVE_EXIT_SECONDS = 15.0
TORCHRUN_EXIT_SECONDS = 5.0  # after the end of all ranks


def fetch_source(source: Archive, node: Node) -> Path:
    """Folder of the user's unpacked sources, downloaded unless it exists.

    Raises ValueError if the SHA-256 differs from that in the run record.
    """
    folder = BASE / "job" / source.sha256
    if folder.exists():
        return folder
    bucket, key = split_s3_uri(source.uri)
    content = Bucket(bucket, node.region, node.account).read(key)
    digest = hashlib.sha256(content).hexdigest()
    if digest != source.sha256:
        raise ValueError(f"{source.uri} has SHA-256 {digest}, but the run record has {source.sha256}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent))
    extract_archive(io.BytesIO(content), work)
    work.chmod(0o755)
    work.rename(folder)
    return folder


def copy_source(folder: Path, work: Path, user: JobUser | None) -> None:
    """Copy the job's sources into the folder in which the job runs and which it may change."""
    shutil.copytree(folder, work, symlinks=True)
    if user is not None:
        for path in (work, *work.rglob("*")):
            os.lchown(path, user.uid, user.gid)


def read_secrets(names: dict[str, str], region: str) -> dict[str, str]:
    """Values of SSM parameters. `names`: environment variable -> name of the parameter."""
    ssm = client("ssm", region) if names else None
    return {
        variable: ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
        for variable, name in names.items()
        if ssm is not None
    }


def model_location(manifest: Manifest, job: Job) -> str | None:
    """Folder of the job's model: on FSx if it is mounted, else for caches; or its name in the Hugging Face hub."""
    if job.model_uri is None or job.reads_hub:
        return (job.model_uri or "").removeprefix(HUB_SCHEME) or None
    shared = Path(manifest.fsx.mount_point) if manifest.fsx else None
    root = shared if shared is not None and shared.is_mount() else scratch_folder()
    name = job.model_uri.rstrip("/").rpartition("/")[2]
    return str(root / "models" / f"{name}-{hashlib.sha256(job.model_uri.encode()).hexdigest()[:12]}")


def _local_rank(process: int) -> int | None:
    """Local rank of a process, from the log file of its stderr; None if it is no rank. Raises OSError if it has ended.

    A forked rank has the environment of its parent in /proc.
    """
    folder = Path(f"/proc/{process}/fd/2").readlink().parent
    return int(folder.name) if re.fullmatch("[0-9]{1,4}", folder.name) else None


def secure_memory() -> None:
    """Create the folder for copies in host memory. Any user can create files in its parent: a job's is moved away."""
    with suppress(FileNotFoundError):
        status = MEMORY.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            MEMORY.rename(MEMORY.with_name(f"{MEMORY.name}.{time.time_ns()}"))
    MEMORY.mkdir(parents=True, exist_ok=True)


def delete_memory(current: str | None = None) -> None:
    """Delete the copies in host memory of all runs except the current one."""
    secure_memory()
    for folder in MEMORY.iterdir():
        if folder.name != current:
            delete_job_folder(folder)


def _attempt_folder(run: str, attempt: int) -> Path:
    return BASE / "runs" / run / f"attempt-{attempt:04d}"


def _attempt_unit(run: str, attempt: int, user: JobUser | None, image: str | None) -> JobUnit:
    """Unit of an attempt. The client of a container needs root; the processes in the container do not."""
    return JobUnit(run, attempt, _attempt_folder(run, attempt), None if image else user)


class AttemptTorchrun(Torchrun):
    """torchrun of one attempt on this node, in a separate unit: the last attempt in the agent's state.

    `control`: the request of the attempt; None for an attempt that an earlier agent has started. `standby`: unit of the
    attempt in which a standby waits, if there is one. `credentials`: variables by which the job finds its credentials.
    """

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        group: WorkerGroup,
        run: RunRecord,
        state_file: AgentStateFile,
        credentials: Mapping[str, str],
        control: Control | None = None,
        standby: JobUnit | None = None,
    ) -> None:
        state = state_file.state
        self._manifest, self._group, self._run = manifest, group, run
        self.number, self._state_file, self._credentials = state.attempt, state_file, credentials
        self._aborted_at: float | None = None
        self._killed_at: float | None = None  # monotonic time at which its ranks were killed first
        self._image = run.job.container
        self._has_rebooted = state.boot != node.boot
        folder, user = _attempt_folder(run.run, self.number), find_job_user()
        self._unit = standby or _attempt_unit(run.run, self.number, user, self._image)
        super().__init__(
            node.model_copy(update={"boot": state.boot}),  # its streams continue
            manifest,
            run,
            folder,
            self._unit.files / LOG,
            lambda name: attempt_source(state.attempt, name),
            "rank",
            state.first_rank,
            user,
        )
        self._metrics = folder / "metrics"
        metrics = self._metrics / "metrics.jsonl"
        self.follow_file("metrics", metrics, self._layout.metrics, self._layout.latest_metrics)
        if run.job.source is not None or run.job.model_uri is not None:
            self.follow_file("prepare", self._unit.prepared / LOG)
        if control is not None:
            self._start(control)
        else:
            self._unit.attach()
            if self._unit.is_standby:  # the earlier agent has ended before it started the attempt
                self._unit.stop()

    def _start(self, control: Control) -> None:
        node, run, manifest = self._node, self._run, self._manifest
        assert control.master is not None, "the controller requests no attempt without it"
        writable = self._create_folders(self._folder)
        install: list[list[str]] = []
        if run.job.source is None:
            assert run.job.train is not None
            config = self._folder / "config.json"
            config.write_text(run.job.train.model_dump_json())
            folder, job = Path(node.bundle), ["-m", "trainer", "--config", str(config)]
        else:
            assert run.job.command is not None
            source, folder = fetch_source(run.job.source, node), self._folder / WORK
            self._remove_earlier_work()
            copy_source(source, folder, self._user)
            job, writable = list(run.job.command), [*writable, folder]
            install = self._install_commands(source)
        command = torchrun_command(
            python=self._folder / VENV / "bin/python" if install else job_python(manifest, run.job.container),
            nodes=control.nodes,
            instance=node.instance,
            master=control.master,
            rendezvous=f"{run.run}-{self.number}",
            processes=run.processes_per_node,
            job=job,
            logs=self._logs,
            # Another environment than the pinned one may have a torchrun without the option.
            binds_numa=bool(self._group.gpus and manifest.node.use_gpus and not (self._image or manifest.node.venv)),
            launcher=self._launcher,
        )
        variables = self._variables(self.number) | read_secrets(run.job.secrets, node.region)
        variables = container_variables(self._image, variables)
        launch = Launch(writable, [*install, *self._download_commands()], in_container=self._image is not None)
        self._unit.start(in_container(self._image, command, writable), folder, variables, launch)

    def _install_commands(self, source: Path) -> list[list[str]]:
        """Commands that install the requirements of a custom job. A container image has all packages of its job."""
        run, settings = self._run, self._manifest.node
        requirements = source / source_environment.REQUIREMENTS
        if run.job.container is not None or not requirements.exists():
            return []
        lock, python = run.requirements.uri if run.requirements else "", job_python(self._manifest, None)
        options = [str(requirements), lock, settings.package_index or "", str(python), str(self._folder / VENV)]
        return [[sys.executable, source_environment.__file__, *options]]

    def _download_commands(self) -> list[list[str]]:
        """Commands that download the model of the job."""
        job, model = self._run.job, model_location(self._manifest, self._run.job)
        if job.model_uri is None or model is None or job.reads_hub:
            return []
        return [[sys.executable, model_program.__file__, job.model_uri, model, self._node.region]]

    def _create_folders(self, folder: Path) -> list[Path]:
        """Create the folders of an attempt that the job may write, and return them."""
        secure_memory()
        memory = MEMORY / self._run.run
        folders = [folder / name for name in ("logs", "metrics", "requests")]
        folders += [cache_folder(), home_folder(), memory]
        if self._manifest.fsx is not None and (shared := Path(self._manifest.fsx.mount_point)).is_mount():
            folders += [shared / "scratch", *([exports] if (exports := shared / "exports").is_dir() else [])]
        for each in folders:
            create_job_folder(each, self._user)
        return folders

    def _remove_earlier_work(self) -> None:
        for folder in _attempt_folder(self._run.run, 0).parent.glob(f"attempt-*/{WORK}"):
            delete_job_folder(folder)

    def _variables(self, attempt: int) -> dict[str, str]:
        """Environment variables of an attempt of the run on this node, without secrets."""
        folder = _attempt_folder(self._run.run, attempt)
        variables = job_variables(
            manifest=self._manifest,
            group=self._group,
            run=self._run,
            attempt=attempt,
            instance=self._node.instance,
            address=self._node.address,
            metrics=folder / "metrics",
            request=folder / REQUEST,
            cache=cache_folder(),
            model=model_location(self._manifest, self._run.job),
            network=self._state_file.state.network,
        )
        if self._run.job.train is not None:
            variables["TRAINYARD_MEMORY"] = str(MEMORY / self._run.run)
        return home_variables(self._user) | dict(self._credentials) | variables

    @property
    def _launcher(self) -> str:
        """The module that starts the ranks of the job."""
        if self._run.job.train is None:
            return TORCHRUN
        return SUPERVISOR if self._run.job.train.recovery == "in_process" else TRAINER_LAUNCHER

    @property
    def has_standby(self) -> bool:
        """Whether a standby can start the next attempt: it is part of the built-in trainer's launcher."""
        return self._launcher == TRAINER_LAUNCHER and self._run.job.standby

    def start_standby(self) -> JobUnit:
        """Start a standby, which imports torch before the next attempt starts. Returns the unit of that attempt.

        It has no secrets before the attempt starts. Raises OSError with systemd's message.
        """
        unit = self._next_unit()
        writable = self._create_folders(_attempt_folder(self._run.run, unit.number))
        command = [str(job_python(self._manifest, None)), "-m", TRAINER_LAUNCHER, STANDBY]
        unit.start_standby(command, Path(self._node.bundle), self._variables(unit.number), Launch(writable))
        return unit

    def stop_standby(self) -> None:
        """Stop the standby that an earlier agent has started for the next attempt."""
        self._next_unit().stop()

    def _next_unit(self) -> JobUnit:
        return _attempt_unit(self._run.run, self.number + 1, self._user, None)

    @property
    def process_id(self) -> int:
        """Id of the process whose child is torchrun."""
        return self._unit.process_id

    def exit_code(self) -> int | None:
        """Exit code of torchrun; None while it runs."""
        return self._unit.exit_code()

    def are_workers_up(self) -> bool:
        """Whether all ranks of this node have started: torchrun creates a rank's logs when it starts that rank."""
        return len(rank_log_folders(self._logs, self._processes)) >= self._processes

    def progress(self) -> tuple[RankProgress, ...]:
        """Progress of the ranks of this node that have written a valid progress file."""
        ranks = []
        for rank in range(self._first_rank, self._first_rank + self._processes):
            with suppress(OSError, ValidationError):  # a custom job need not write one
                content = read_job_file(progress_file(self._metrics, rank), PROGRESS_BYTES)
                ranks.append(RankProgress.model_validate_json(content))
        return tuple(ranks)

    def failures(self) -> tuple[RankFailure, ...]:
        """Failures of this node's ranks, or the failure of the node or of the job's environment."""
        code = self.exit_code()
        assert code is not None, "torchrun has ended"
        if self._has_rebooted:
            return (self._node_failure(code, NODE_REBOOTED),)
        if code == source_environment.EXIT_FAILED:
            return (self._node_failure(code, *source_environment.find_error(self._unit.output())),)
        killed = self._state_file.state.killed_ranks
        return tuple(
            failure
            for failure in super().failures()
            if failure.exitcode != -signal.SIGKILL or failure.local_rank not in killed
        )

    def _node_failure(self, code: int, message: str, details: str = "", is_permanent: bool = False) -> RankFailure:
        return RankFailure(
            rank=self._first_rank,
            local_rank=None,
            time=time.time(),
            exitcode=code,
            message=message,
            traceback=details,
            is_permanent=is_permanent,
        )

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted_at is not None

    def has_failed_rank(self) -> bool:
        """Whether the attempt was aborted, or torchrun ends the ranks of this node because one of them has failed."""
        return self.is_aborted or self._is_closing()

    def _is_closing(self) -> bool:
        return "closing signal" in self.output()

    def _is_saving(self) -> bool:
        """Whether a rank is writing a checkpoint. If a rank of this node has failed, torchrun ends the others, too."""
        return any(each.is_saving for each in self.progress()) and not self._is_closing()

    def abort(self) -> None:
        """End the attempt, which has failed: repeat the call until torchrun has ended.

        Ranks that still run after RANK_EXIT_SECONDS are killed, and torchrun itself TORCHRUN_EXIT_SECONDS later. While
        a rank of the node is writing a checkpoint, none is killed before SAVE_EXIT_SECONDS: torchrun would end all.
        """
        now = time.monotonic()
        self._aborted_at = now if self._aborted_at is None else self._aborted_at
        seconds = now - self._aborted_at
        if self.exit_code() is not None or seconds < RANK_EXIT_SECONDS:
            return
        if seconds < SAVE_EXIT_SECONDS and self._is_saving():
            return
        self._killed_at = now if self._killed_at is None else self._killed_at
        is_preparing = not self.process_id  # and 0 is the parent of all processes
        if self._image is not None or is_preparing or now > self._killed_at + TORCHRUN_EXIT_SECONDS:
            self.kill()
            return
        for torchrun in child_processes(self.process_id):
            for process in child_processes(torchrun):
                with suppress(OSError):  # it has exited
                    self._kill_rank(process)

    def _kill_rank(self, process: int) -> None:
        """Kill a process of torchrun if it is a rank, and store that, so that it is not reported as a failure."""
        if (rank := _local_rank(process)) is not None:
            self._state_file.update(killed_ranks=tuple(sorted({*self._state_file.state.killed_ranks, rank})))
            os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        """Stop torchrun with SIGTERM, on which it stops its workers; with SIGKILL after job_unit.STOP_SECONDS."""
        self._unit.stop()

    def kill(self) -> None:
        """Kill torchrun and its workers with SIGKILL."""
        self._unit.kill()

    def detach(self) -> None:
        """Leave torchrun to the next agent."""
        self.close(final=False)
        self._unit.close()

    def save_checkpoint(self, timeout_seconds: float, record_heartbeat: Callable[[], object]) -> bool:
        """Request a checkpoint, wait for it, and return whether it was saved. Calls `record_heartbeat` meanwhile."""
        request = self._folder / REQUEST
        create_job_file(request, b"", self._user)
        deadline = heartbeat_at = time.monotonic()
        deadline += timeout_seconds
        while request.exists() and self.exit_code() is None and time.monotonic() < deadline:
            if time.monotonic() >= heartbeat_at:
                heartbeat_at += LIFECYCLE_HEARTBEAT_SECONDS
                record_heartbeat()
            self.forward_logs()
            report_progress()
            time.sleep(0.2)
        return not request.exists()
