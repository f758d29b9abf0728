"""Client of the emulated AWS: starts it as a child process and calls its control API."""

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

from rehearsal.aws.account_file import FILE_NAME, FILE_VARIABLE, TOKEN_HEADER, AccountFile, PrincipalName
from rehearsal.aws.billing import billed_seconds
from rehearsal.aws.control_models import CapacityRequestRecord, InstanceRecord, ReservationRecord, Resource
from rehearsal.aws.faults import FAULTS, Fault
from rehearsal.aws.journal import JournalEntry, read_journal
from rehearsal.aws.seed_models import AccountSeed
from rehearsal.aws.timing import Timing
from rehearsal.private_files import make_private_folder

ACCOUNT = "123456789012"
START_SECONDS = 60.0
STOP_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 5.0
REQUEST_TIMEOUT_SECONDS = 30.0
_ROOT = Path(__file__).parents[2]


class EmulatedAws:
    """A running emulated AWS. A context manager: its exit, or the exit of this process, stops the emulated AWS."""

    def __init__(self, process: "subprocess.Popen[bytes] | None", file: Path) -> None:
        """Use `attach` or `start`. `file`: the account's file. Raises OSError or ValueError if it cannot be read."""
        account = AccountFile.read(file)
        self._process, self._file = process, file
        self._journal, self.secrets = account.journal, account.secrets
        self.endpoint, self.node_endpoint = account.endpoint, account.node_endpoint
        self.region, self.uses_loopback = account.region, account.uses_loopback

    @classmethod
    def attach(cls, file: Path) -> Self:
        """Return a client of the running emulated AWS with this file. Raises ValueError unless it responds."""
        try:
            account = cls(None, file)
            account.now()
        except (OSError, HTTPException, ValueError, TypeError, LookupError) as error:
            raise ValueError(f"no emulated AWS responds: {error}") from error
        return account

    @classmethod
    def start(cls, folder: Path, addresses: str | None = None, region: str = "us-east-1") -> Self:
        """Start an emulated AWS and wait until it listens.

        `folder`, which becomes private, receives `account.json`, `journal.jsonl` and `aws.log`. `addresses` is the
        network of the instances' private addresses; none: their subnets'. Raises RuntimeError with the end of the log
        if the process exits or does not listen within START_SECONDS.
        """
        make_private_folder(folder)
        file, journal, log = folder / FILE_NAME, folder / "journal.jsonl", folder / "aws.log"
        file.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
        command = [sys.executable, "-m", "rehearsal.aws", "--with-parent", "--region", region]
        command += ["--account-file", str(file.absolute()), "--journal", str(journal.absolute())]
        command += ["--addresses", addresses] if addresses else []
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MOTO_"))}
        with log.open("wb") as output:
            # A separate session, so that Ctrl-C reaches only the rehearsal, whose teardown still needs the account.
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
            while not file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(
                        f"the emulated AWS did not listen within {START_SECONDS:.0f} s. End of its log: {tail}"
                    )
                time.sleep(0.02)
            return cls(process, file.absolute())
        except BaseException:
            process.kill()
            process.communicate()
            raise

    @property
    def pid(self) -> int:
        """Process id of an emulated AWS that this object started."""
        assert self._process is not None, "attached to an emulated AWS that another process started"
        return self._process.pid

    def environment(self, region: str | None = None) -> dict[str, str]:
        """Return environment variables that direct AWS clients to this account, without the user's configuration."""
        region = region or self.region
        return {
            FILE_VARIABLE: str(self._file),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.secrets.operator.id,
            "AWS_SECRET_ACCESS_KEY": self.secrets.operator.secret,
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def session(self, principal: PrincipalName = "operator", region: str | None = None) -> Any:
        """Return a boto3 session with the keys of a principal. Its clients need `endpoint` as their endpoint_url."""
        import boto3  # here, because its import takes time that a program without clients does not need

        key = self.secrets.key(principal)
        return boto3.Session(key.id, key.secret, region_name=region or self.region)

    def instances(self) -> list[InstanceRecord]:
        """Return every instance of the account, terminated ones included."""
        return [InstanceRecord.model_validate(item) for item in self._request("instances")]

    def capacity_reservations(self) -> list[ReservationRecord]:
        """Return every On-Demand Capacity Reservation of the account, also those that have ended."""
        return [ReservationRecord.model_validate(item) for item in self._request("reservations")]

    def capacity_requests(self) -> list[CapacityRequestRecord]:
        """Return the launches and reservations that were requested, granted or not, in order."""
        return [CapacityRequestRecord.model_validate(item) for item in self._request("capacity-requests")]

    def report_shutdown(self, instance_id: str) -> None:
        """Report to EC2 that an instance's operating system has shut down."""
        self._request("shutdown", "POST", {"instance": instance_id})

    def report_responding(self, instance_id: str, is_responding: bool) -> None:
        """Report to EC2's status checks whether an instance's operating system responds."""
        self._request("responding", "POST", {"instance": instance_id, "is_responding": is_responding})

    def list_resources(self) -> list[Resource]:
        """Return every resource of the account."""
        return [Resource.model_validate(item) for item in self._request("resources")]

    def now(self) -> float:
        """Return the account's Unix time, seconds."""
        return float(self._request("clock")["now"])

    def advance_clock(self, seconds: float) -> float:
        """Move the account's clock forward and run the actions due until then. Returns the account's Unix time."""
        return float(self._request("clock", "POST", {"advance_seconds": seconds})["now"])

    def seed(self, account_seed: AccountSeed) -> None:
        """Create resources in the account. Raises ValueError with the reason, and then none is created."""
        self._request("seed", "POST", account_seed.model_dump())

    def set_timing(self, timing: Timing) -> None:
        """Set how long transitional states last from now on."""
        self._request("timing", "POST", timing.model_dump())

    def inject(self, *faults: Fault | dict[str, Any]) -> None:
        """Add faults to the active ones. Raises ValueError with the reason, and then none is added."""
        content = [fault if isinstance(fault, dict) else fault.model_dump() for fault in faults]
        self._request("faults", "POST", content)

    def faults(self) -> list[Fault]:
        """Return the active faults."""
        return FAULTS.validate_python(self._request("faults"))

    def faults_without_effect(self) -> list[Fault]:
        """Return the active faults that have had no effect."""
        return FAULTS.validate_python(self._request("faults-without-effect"))

    def remove_faults(self, faults: Iterable[Fault]) -> None:
        """Remove these faults; others remain active."""
        self._request("faults", "DELETE", [fault.model_dump() for fault in faults])

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._request("faults", "DELETE")

    def billed_instance_seconds(self) -> float:
        """Return the instance-seconds billed so far."""
        return billed_seconds(self.instances(), self.now())

    def journal(self) -> list[JournalEntry]:
        """Return every API call so far, in order."""
        return read_journal(self._journal)

    def exit_reason(self) -> str:
        """Return why the emulated AWS no longer accepts connections; empty while it does."""
        address = urlsplit(self.endpoint)
        try:
            socket.create_connection((address.hostname, address.port), CONNECT_TIMEOUT_SECONDS).close()
        except OSError as error:
            log = self._journal.with_name("aws.log")
            return (
                f"the emulated AWS at {self.endpoint} exited and its resources are lost ({error}). See its log: {log}"
            )
        return ""

    def _request(self, name: str, method: str = "GET", content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        url, headers = f"{self.endpoint}/_rehearsal/{name}", {TOKEN_HEADER: self.secrets.token}
        request = Request(url, body, headers, method=method)  # noqa: S310 - loopback only
        try:
            with urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as response:  # noqa: S310
                return json.load(response)
        except HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def stop(self) -> None:
        """Stop the process: SIGTERM, then SIGKILL. Does nothing if it has exited or this object is attached to it."""
        if self._process is None:
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
