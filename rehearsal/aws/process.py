"""The emulated AWS as a process, from the side of the one who starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rehearsal.aws.billing import billed_seconds
from rehearsal.aws.control_models import InstanceTruth, Resource
from rehearsal.aws.faults import FAULTS, Fault
from rehearsal.aws.journal import JournalEntry, read_journal
from rehearsal.aws.seed_models import Given

ACCOUNT = "123456789012"
OPERATOR_KEY = "AKIAREHEARSALOPERATE"
START_SECONDS = 60.0
STOP_SECONDS = 5.0
ANSWER_SECONDS = 5.0
_ROOT = Path(__file__).parents[2]


class EmulatedAws:
    """A running emulated AWS. A context manager: leaving it ends the process, and so does the caller's own end."""

    def __init__(
        self, process: "subprocess.Popen[bytes] | None", journal: Path, endpoint: str, region: str, loopback: bool
    ) -> None:
        """`loopback`: whether its instances have addresses of this machine's loopback, not those of their subnets."""
        self._process = process
        self._journal = journal
        self.region, self.loopback = region, loopback
        self.endpoint = endpoint

    @classmethod
    def attach(cls, endpoint: str) -> Self:
        """Use one that runs already. Raises ValueError when nothing of ours answers on the loopback at `endpoint`."""
        if urlsplit(endpoint).hostname not in {"127.0.0.1", "localhost"}:
            raise ValueError("it is not on this machine's loopback")
        try:
            with urlopen(f"{endpoint}/_rehearsal/about", timeout=5) as answer:  # noqa: S310 - on the loopback
                about: dict[str, str] = json.load(answer)[0]
            loopback = about["addresses"] != "subnets"
            return cls(None, Path(about["journal"]), endpoint, about["region"], loopback)
        except (OSError, HTTPException, ValueError, TypeError, LookupError) as error:
            raise ValueError(f"no emulated AWS answers there: {error}") from error

    @classmethod
    def start(cls, folder: Path, addresses: str | None = None, region: str = "us-east-1") -> Self:
        """Start it and wait until it listens.

        `folder` receives `port`, `journal.jsonl` and `aws.log`. `addresses` is the network of the instances' private
        addresses; none: their subnets'. Raises RuntimeError with the log's tail when it ends or takes START_SECONDS.
        """
        folder.mkdir(parents=True, exist_ok=True)
        port_file, journal, log = folder / "port", folder / "journal.jsonl", folder / "aws.log"
        port_file.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
        command = [sys.executable, "-m", "rehearsal.aws", "--with-parent", "--region", region]
        command += ["--port-file", str(port_file.absolute()), "--journal", str(journal.absolute())]
        command += ["--addresses", addresses] if addresses else []
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MOTO_"))}
        with log.open("wb") as output:
            # A session of its own: Ctrl-C is for the rehearsal, which still needs the account to take things down.
            process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the emulated AWS did not listen within {START_SECONDS:.0f} s: {tail}")
                time.sleep(0.02)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return cls(process, journal, f"http://127.0.0.1:{port_file.read_text()}", region, addresses is not None)

    @property
    def pid(self) -> int:
        assert self._process is not None, "attached: another's process"
        return self._process.pid

    def environment(self, region: str | None = None) -> dict[str, str]:
        """Environment variables for clients: this account, and no settings of the user's own."""
        where = region or self.region
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": OPERATOR_KEY,
            "AWS_SECRET_ACCESS_KEY": "rehearsal",
            "AWS_REGION": where,
            "AWS_DEFAULT_REGION": where,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def instances(self) -> list[InstanceTruth]:
        """Every instance that ever was, terminated ones included."""
        return [InstanceTruth.model_validate(item) for item in self._page("instances")]

    def switched_off(self, instance: str) -> None:
        """Tell EC2 that an instance has switched itself off."""
        self._page("switched-off", "POST", {"instance": instance})

    def dump(self) -> list[Resource]:
        """All that exists in the account."""
        return [Resource.model_validate(item) for item in self._page("dump")]

    def now(self) -> float:
        """The account's Unix time, seconds."""
        return float(self._page("clock")["now"])

    def advance(self, seconds: float) -> float:
        """Move the account's clock forward; what was due until then has happened. Returns the account's time."""
        return float(self._page("clock", "POST", {"advance_seconds": seconds})["now"])

    def give(self, given: Given) -> None:
        """Let these stand in the account. Raises ValueError with the reason, and then nothing was made."""
        self._page("given", "POST", given.model_dump())

    def inject(self, *faults: Fault | dict[str, Any]) -> None:
        """Put faults on, beside those that are. Raises ValueError with the reason, and then none was put on."""
        given = [each if isinstance(each, dict) else each.model_dump() for each in faults]
        self._page("faults", "POST", given)

    def faults(self) -> list[Fault]:
        """Those that are on."""
        return FAULTS.validate_python(self._page("faults"))

    def end_faults(self, faults: Iterable[Fault]) -> None:
        """End these; others stay on."""
        self._page("faults", "DELETE", [each.model_dump() for each in faults])

    def clear_faults(self) -> None:
        """End all faults."""
        self._page("faults", "DELETE")

    def billed(self) -> float:
        """Instance-seconds billed so far."""
        return billed_seconds(self.instances(), self.now())

    def journal(self) -> list[JournalEntry]:
        """Every API call so far, in order."""
        return read_journal(self._journal)

    def died(self) -> str:
        """How it ended before its time; empty while it listens."""
        where = urlsplit(self.endpoint)
        try:
            socket.create_connection((where.hostname, where.port), ANSWER_SECONDS).close()
        except OSError as error:
            log = f"its log is {self._journal.with_name('aws.log')}"
            return f"the emulated AWS at {self.endpoint} died, and all that it held went with it ({error}): {log}"
        return ""

    def _page(self, name: str, method: str = "GET", content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        asked = Request(f"{self.endpoint}/_rehearsal/{name}", body, method=method)  # noqa: S310 - our own server
        try:
            with urlopen(asked, timeout=30) as answer:  # noqa: S310
                return json.load(answer)
        except HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def stop(self) -> None:
        """End the process and wait for it: SIGTERM, then SIGKILL. Harmless when it has ended, or was attached to."""
        if self._process is None:  # another's
            return
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
