"""A rehearsal in a process of its own, the phases in which it can be met, and what must not stay when it is gone."""

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

import psutil

from rehearsal.hypervisor.processes import marked
from rehearsal.hypervisor.registry import sweep
from rehearsal.interrupts import INTERRUPTED as INTERRUPTED
from tests.polling import eventually
from tests.rehearsal.conftest import clean_environment, write_stack

END_SECONDS = 240.0
# Jobs of one process. The second writes a checkpoint that is never whole.
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
class Ended:
    """How a rehearsal ended. `report`: empty where it left none."""

    status: int
    told: str
    report: dict[str, Any]


class Running:
    """A rehearsal of one node; without an `account` that stays it has its own. `script`: a job that JOBS has not.

    Its node is not verified, which would start torch: a test that is of that says so by `launch_settings`.
    """

    launch_settings: ClassVar[dict[str, Any]] = {"verify_minutes": 0}
    workers_wanted: ClassVar[int] = 1
    words: ClassVar[tuple[str, ...]] = ()  # of the command, beside its stack

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
        self._stack_file(job, script)
        beside = tree.parent / f"{stack}-{len(list(tree.parent.iterdir()))}"
        self.temporary = beside / "tmp"
        self.temporary.mkdir(parents=True)
        self._told, self._out = beside / "stderr", beside / "stdout"
        for name in ("aws/journal.jsonl", "aws/port"):  # an earlier one's
            (self.folder / name).unlink(missing_ok=True)
        with self._told.open("w") as told, self._out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rehearsal", "run", "--stack", stack, "--json", *self.words],
                cwd=tree,
                env=clean_environment() | self.account | {"TMPDIR": str(self.temporary)},
                stdout=out,
                stderr=told,
                start_new_session=True,
            )
        self.family: set[psutil.Process] = set()

    def _stack_file(self, job: str, script: str | None) -> None:
        """`refused` is a job whose launch fails at once: the shortest way to destroy."""
        source = self.tree / "examples" / job
        source.mkdir(exist_ok=True)
        text = script or JOBS.get(job, JOBS["endless"])
        (source / "train.py").write_text(text)
        settings: dict[str, Any] = {
            "name": job,
            "dataset": "none",
            "source": f"examples/{job}",
            "command": ["train.py"],
        }
        settings["checkpoint_on_request"] = "CHECKPOINT_REQUEST" in text
        resume = {"resume": "no-such-run"} if job == "refused" else {}
        job_settings = {**settings, "processes_per_node": 1, **resume}
        launch = {"merge": True, **self.launch_settings}
        write_stack(self.tree, self.stack, nodes=self.workers_wanted, job=job_settings, launch=launch)

    def told(self) -> str:
        return self._told.read_text()

    def calls(self) -> str:
        """The journal of its own account."""
        file = self.folder / "aws/journal.jsonl"
        return file.read_text() if file.exists() else ""

    def port(self) -> int | None:
        """Of its own account, once that listens."""
        file = self.folder / "aws/port"
        return int(file.read_text()) if file.exists() else None

    def until(self, what: str, there: Callable[[], bool], seconds: float = END_SECONDS) -> None:
        """Poll; fails with what was told when the rehearsal ends before."""

        def look() -> bool:
            ended = self.process.poll()
            found = there()
            assert found or ended is None, f"it ended ({ended}) before {what}: {self.told()}"
            return found

        eventually(look, what, seconds)

    def says(self, words: str) -> None:
        self.until(repr(words), lambda: words in self.told())

    def reaches(self, phase: str, then: Callable[[], None] = lambda: None) -> None:
        """`then`: what is done at once when it is there."""

        def there() -> bool:
            if found := PHASES[phase](self):
                then()
            return found

        self.until(f"the phase {phase}", there)
        self.family = {*psutil.Process(self.process.pid).children(recursive=True), *marked(self.folder)}

    def hold(self, phase: str) -> None:
        """Stop it the moment that a phase is seen: what a test then looks up stays so until `go_on`."""
        self.reaches(phase, lambda: self.process.send_signal(signal.SIGSTOP))
        eventually(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED, "its stop", 10.0)

    def go_on(self) -> None:
        """After `hold`; a signal sent meanwhile is the first that it meets."""
        self.process.send_signal(signal.SIGCONT)

    def send(self, number: int) -> None:
        """SIGINT as a terminal does, to the whole group; any other to the process alone."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def ends(self) -> Ended:
        status = self.process.wait(END_SECONDS)
        out = self._out.read_text()
        return Ended(status, self.told(), json.loads(out) if out.strip() else {})

    def close(self) -> None:
        """Whatever a test left of it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        sweep(self.folder)


def started(above: int, *words: str) -> list[psutil.Process]:
    """Those below process `above` that were started with these words, one after the other.

    Not their own children: one that is forked and has not yet become its program has its parent's words.
    """
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(above).children():
            with suppress(psutil.NoSuchProcess):
                line = one.cmdline()
                fits = any((*line[at : at + len(words)],) == words for at in range(len(line)))
                found += [one] if fits else started(one.pid, *words)
    return found


PHASES: dict[str, Callable[[Running], bool]] = {
    "start": lambda one: "pydantic_core" in Path(f"/proc/{one.process.pid}/maps").read_text(),
    "account": lambda one: one.port() is None and bool(started(one.process.pid, "rehearsal.aws")),
    "preview": lambda one: "GetCallerIdentity" in one.calls(),
    "resources": lambda one: "CreateVpc" in one.calls(),
    "bring-up": lambda one: "configuring itself" in one.told(),
    "launch": lambda one: "1 of 1 launched" in one.told(),
    "training": lambda one: "started: 1 processes" in one.told(),
    "checkpoint": lambda one: "UploadPart" in one.calls(),
    "destroy": lambda one: "Delete" in one.calls(),
}
JOB_OF = {"checkpoint": "writing", "destroy": "refused"}


def nothing_left(running: Running) -> None:
    """No process, listener, lock, mount or temporary folder of a rehearsal that has ended stays."""
    folder = running.folder
    assert marked(folder) == []
    assert [one for one in running.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    about = [
        one.info["pid"]
        for one in psutil.process_iter(["pid", "cmdline"])
        if any(f"{folder}/" in word for word in one.info["cmdline"] or ())
    ]
    assert about == []
    port = running.port()
    if port is not None:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"something listens on port {port}"
    assert listeners(running) == []
    assert lock_is_free(folder)
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert list(running.temporary.iterdir()) == []


def listeners(running: Running) -> list[str]:
    """Listening sockets of processes that work in the rehearsal's tree, all but this one's and a kept account's."""
    found = []
    for one in psutil.process_iter():
        try:
            words, place = one.cmdline(), one.cwd()
            if not place.startswith(str(running.tree)) or running.stack not in " ".join(words):
                continue
            found += [f"{one.pid} {part.laddr}" for part in one.net_connections() if part.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
    return found


def lock_is_free(folder: Path) -> bool:
    if not (folder / "lock").exists():  # it ended before it took it
        return True
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


Begin = Callable[..., Running]
Kind = TypeVar("Kind", bound=Running)


@contextmanager
def beginning(tree: Path, kind: type[Kind]) -> Iterator[Callable[..., Kind]]:
    """Starts rehearsals, and ends what a test leaves of them."""
    made: list[Kind] = []

    def begin(stack: str, job: str = "endless", **more: Any) -> Kind:
        made.append(kind(tree, stack, job, **more))
        return made[-1]

    try:
        yield begin
    finally:
        for one in made:
            one.close()
