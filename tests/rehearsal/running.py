"""Runs a rehearsal in a separate process, waits for its phases, and checks that nothing of it remains."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import psutil

from rehearsal.aws.account_file import FILE_NAME, FILE_VARIABLE, AccountFile
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.processes import find_processes
from rehearsal.hypervisor.registry import remove_leftovers
from rehearsal.interrupts import INTERRUPTED as INTERRUPTED
from tests.polling import eventually
from tests.rehearsal.conftest import clean_environment, write_stack

EXIT_TIMEOUT_SECONDS = 240.0
# Jobs of one process. The second writes a checkpoint that never becomes complete.
JOBS = {
    "endless": "import time\nwhile True:\n    time.sleep(1)\n",
    "writing": """\
import os, time
import boto3
bucket, _, prefix = os.environ["CHECKPOINT_URI"].removeprefix("s3://").partition("/")
s3 = boto3.client("s3")
upload = dict(Bucket=bucket, Key=prefix + "step-00000001/part")
upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
for number in range(1, 10000):
    s3.upload_part(**upload, PartNumber=number, Body=b"x" * 1024)
    time.sleep(0.2)
""",
}


@dataclass(frozen=True)
class CompletedRehearsal:
    """The result of a rehearsal process. `report` is empty if it wrote none."""

    exit_status: int
    stderr: str
    report: dict[str, Any]


class RehearsalProcess:
    """A running rehearsal with one node and a custom job.

    `account`: environment of a shared emulated AWS; without it the rehearsal starts its own. `script`: source code of a
    job that is not in JOBS. The health check is off, because it would start torch; tests of it change
    `launch_settings`. `options`: additional options of the command.
    """

    launch_settings: ClassVar[dict[str, Any]] = {"health_check_timeout_minutes": 0}
    worker_count: ClassVar[int] = 1
    capacity: ClassVar[dict[str, Any]] = {"on_demand": {}}
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        tree: Path,
        stack: str,
        job: str = "endless",
        account: dict[str, str] | None = None,
        script: str | None = None,
    ) -> None:
        self.tree, self.stack, self.account = tree, stack, account or {}
        self.folder = tree / "build/rehearsal" / stack
        self._write_stack_file(job, script)
        output_folder = tree.parent / f"{stack}-{len(list(tree.parent.iterdir()))}"
        self.temporary = output_folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._stderr, self._stdout = output_folder / "stderr", output_folder / "stdout"
        for name in ("aws/journal.jsonl", "aws/account.json"):  # of an earlier rehearsal
            (self.folder / name).unlink(missing_ok=True)
        with self._stderr.open("w") as stderr, self._stdout.open("w") as stdout:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "rehearsal", "run", "--stack", stack),
                    *("--json", "--profile", "instant", *self.options),
                ],
                cwd=tree,
                env=clean_environment() | self.account | {"TMPDIR": str(self.temporary)},
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self.family: set[psutil.Process] = set()

    def _write_stack_file(self, job: str, script: str | None) -> None:
        """Write the stack file. The launch of the job `refused` fails immediately: the fastest way to destroy."""
        source = self.tree / "examples" / job
        source.mkdir(exist_ok=True)
        text = script or JOBS.get(job, JOBS["endless"])
        (source / "train.py").write_text(text)
        settings: dict[str, Any] = {
            "name": job,
            "source": f"examples/{job}",
            "command": ["train.py"],
        }
        settings["checkpoint_on_request"] = "CHECKPOINT_REQUEST" in text
        resume = {"resume": "no-such-run"} if job == "refused" else {}
        job_settings = {**settings, "processes_per_node": 1, **resume}
        launch = {"merge": True, **self.launch_settings}
        changes = {"nodes": self.worker_count, "job": job_settings, "launch": launch, "capacity": self.capacity}
        write_stack(self.tree, self.stack, **changes)

    def stderr(self) -> str:
        """Return the stderr so far."""
        return self._stderr.read_text()

    def journal_text(self) -> str:
        """Return the journal of the rehearsal's emulated AWS so far."""
        file = self.folder / "aws/journal.jsonl"
        return file.read_text() if file.exists() else ""

    def account_port(self) -> int | None:
        """Return the port of the rehearsal's emulated AWS; None before it listens."""
        file = self.folder / "aws" / FILE_NAME
        return urlsplit(AccountFile.read(file).endpoint).port if file.exists() else None

    def aws(self) -> EmulatedAws:
        """Return a client of the emulated AWS that the rehearsal uses."""
        if FILE_VARIABLE not in self.account:  # the account ends with the rehearsal
            assert self.process.poll() is None, f"the rehearsal has ended: {self.stderr()}"
        return EmulatedAws.attach(Path(self.account.get(FILE_VARIABLE, self.folder / "aws" / FILE_NAME)))

    def client(self, service: str) -> Any:
        """Return a boto3 client of that account."""
        aws = self.aws()
        return aws.session().client(service, endpoint_url=aws.endpoint)

    def wait_until(
        self, description: str, condition: Callable[[], bool], timeout_seconds: float = EXIT_TIMEOUT_SECONDS
    ) -> None:
        """Poll until the condition is true. Fails with the stderr if the rehearsal ends before that."""

        def check() -> bool:
            exit_status = self.process.poll()
            is_met = condition()
            message = f"the rehearsal exited ({exit_status}) before {description}: {self.stderr()}"
            assert is_met or exit_status is None, message
            return is_met

        eventually(check, description, timeout_seconds)

    def wait_for_output(self, text: str) -> None:
        """Wait until the stderr contains a text."""
        self.wait_until(repr(text), lambda: text in self.stderr())

    def wait_for_phase(self, phase: str, action: Callable[[], None] = lambda: None) -> None:
        """Wait for a phase of PHASES. `action` is called as soon as it starts."""

        def is_reached() -> bool:
            if reached := PHASES[phase](self):
                action()
            return reached

        self.wait_until(f"the phase {phase}", is_reached)
        self.family = {*psutil.Process(self.process.pid).children(recursive=True), *find_processes(self.folder)}

    def pause_at_phase(self, phase: str) -> None:
        """Stop the rehearsal's process (SIGSTOP) as soon as a phase starts, until `resume`."""
        self.wait_for_phase(phase, lambda: self.process.send_signal(signal.SIGSTOP))
        eventually(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED, "its stop", 10.0)

    def resume(self) -> None:
        """Continue after `pause_at_phase`. The process then handles the signals that were sent meanwhile."""
        self.process.send_signal(signal.SIGCONT)

    def send_signal(self, number: int) -> None:
        """Send SIGINT to the process group, as a terminal does; send other signals to the process only."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def wait_for_exit(self) -> CompletedRehearsal:
        """Wait until the rehearsal exits. Returns its result."""
        exit_status = self.process.wait(EXIT_TIMEOUT_SECONDS)
        stdout = self._stdout.read_text()
        return CompletedRehearsal(exit_status, self.stderr(), json.loads(stdout) if stdout.strip() else {})

    def close(self) -> None:
        """Kill the rehearsal and everything that remains of it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        remove_leftovers(self.folder)


def find_descendants(ancestor: int, *arguments: str) -> list[psutil.Process]:
    """Return the descendants of a process that were started with these consecutive arguments.

    The children of such a process are not searched: a child between fork and exec has the arguments of its parent.
    """
    matches: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(ancestor).children():
            with suppress(psutil.NoSuchProcess):
                command = child.cmdline()
                is_match = any(
                    (*command[start : start + len(arguments)],) == arguments for start in range(len(command))
                )
                matches += [child] if is_match else find_descendants(child.pid, *arguments)
    return matches


PHASES: dict[str, Callable[[RehearsalProcess], bool]] = {
    "start": lambda rehearsal: "pydantic_core" in Path(f"/proc/{rehearsal.process.pid}/maps").read_text(),
    "account": lambda rehearsal: (
        rehearsal.account_port() is None and bool(find_descendants(rehearsal.process.pid, "rehearsal.aws"))
    ),
    "preview": lambda rehearsal: "GetCallerIdentity" in rehearsal.journal_text(),
    "resources": lambda rehearsal: "CreateVpc" in rehearsal.journal_text(),
    "startup": lambda rehearsal: "node playbook started" in rehearsal.stderr(),
    "launch": lambda rehearsal: "1 of 1 launched" in rehearsal.stderr(),
    "training": lambda rehearsal: "started: 1 process on" in rehearsal.stderr(),
    "checkpoint": lambda rehearsal: "UploadPart" in rehearsal.journal_text(),
    "destroy": lambda rehearsal: "Delete" in rehearsal.journal_text(),
}
PHASE_JOBS = {"checkpoint": "writing", "destroy": "refused"}  # phase -> job that reaches it


def assert_no_leftovers(rehearsal: RehearsalProcess) -> None:
    """Assert that no process, listener, lock, mount or temporary file of a rehearsal remains after its exit."""
    folder = rehearsal.folder
    assert find_processes(folder) == []
    running = [process for process in rehearsal.family if process.is_running()]
    assert [process for process in running if process.status() != psutil.STATUS_ZOMBIE] == []
    using_folder = [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(f"{folder}/" in argument for argument in process.info["cmdline"] or ())
    ]
    assert using_folder == []
    port = rehearsal.account_port()
    if port is not None:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"a process listens on port {port}"
    assert listeners(rehearsal) == []
    assert is_lock_free(folder)
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert list(rehearsal.temporary.iterdir()) == []


def listeners(rehearsal: RehearsalProcess) -> list[str]:
    """Return the listening sockets of processes in the rehearsal's tree whose arguments contain its stack."""
    sockets = []
    for process in psutil.process_iter():
        try:
            arguments, folder = process.cmdline(), process.cwd()
            if not folder.startswith(str(rehearsal.tree)) or rehearsal.stack not in " ".join(arguments):
                continue
            connections = process.net_connections()
            sockets += [f"{process.pid} {item.laddr}" for item in connections if item.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
    return sockets


def is_lock_free(folder: Path) -> bool:
    """Return whether no process holds the lock of a rehearsal folder."""
    if not (folder / "lock").exists():  # the rehearsal exited before it created the lock
        return True
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


StartRehearsal = Callable[..., RehearsalProcess]
Kind = TypeVar("Kind", bound=RehearsalProcess)


@contextmanager
def rehearsal_starter(tree: Path, kind: type[Kind]) -> Iterator[Callable[..., Kind]]:
    """Yield a function that starts rehearsals. On exit, kill the rehearsals that still run."""
    started: list[Kind] = []

    def start_rehearsal(stack: str, job: str = "endless", **arguments: Any) -> Kind:
        started.append(kind(tree, stack, job, **arguments))
        return started[-1]

    try:
        yield start_rehearsal
    finally:
        for rehearsal in started:
            rehearsal.close()
