"""The torchrun command of one attempt, and what its output says of a failure."""

import fcntl
import os
import re
import socket
import struct
from datetime import datetime
from pathlib import Path

from contract.events import RankFailure
from contract.layout import RunLayout
from contract.manifest import Manifest
from contract.run import RunRecord

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_TRACEBACK_BYTES = 6000
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch puts it before each line of an uncaught exception
# Keep-alive slack of 5 s x 3: tighter values expire on loaded cores and set off endless rounds of rendezvous.
_RENDEZVOUS = "is_host=0,keep_alive_interval=5,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout={join}"


def torchrun_command(
    *, python: Path, manifest: Manifest, run: RunRecord, attempt: int, address: str, job: list[str], logs: Path
) -> list[str]:
    """The command line of torchrun. Restarts are the controller's: every attempt has a rendezvous id of its own."""
    head = manifest.head
    return [
        str(python),
        "-m",
        "torch.distributed.run",
        f"--nnodes={run.nodes}",
        f"--nproc-per-node={run.processes_per_node}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={head.address}:{head.rendezvous_port}",
        f"--rdzv-id={run.run}-{attempt}",
        f"--rdzv-conf={_RENDEZVOUS.format(join=300)}",
        f"--local-addr={address}",
        f"--log-dir={logs}",
        "--redirects=3",
        "--monitor-interval=0.5",
        *job,
    ]


def interface_of(address: str) -> str:
    """Name of the network interface whose network holds `address`. Raises OSError where there is none."""
    wanted = struct.unpack("!I", socket.inet_aton(address))[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:

        def ask(request: int, name: str) -> int:
            answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
            number: int = struct.unpack("!I", answer[20:24])[0]
            return number

        for _, name in socket.if_nameindex():
            try:
                own, mask = ask(_SIOCGIFADDR, name), ask(_SIOCGIFNETMASK, name)
            except OSError:  # an interface without an IPv4 address
                continue
            if own & mask == wanted & mask:
                return name
    raise OSError(f"no network interface holds {address}")


def job_environment(
    *, manifest: Manifest, run: RunRecord, attempt: int, address: str, metrics: Path, cache: Path
) -> dict[str, str]:
    """Variables of the job beside the node's own: its three URIs, and what gloo and NCCL need to meet."""
    layout = RunLayout(run.run)
    bucket = f"s3://{manifest.data_bucket}"
    found = {
        "DATA_URI": run.job.data_uri,
        "CHECKPOINT_URI": f"{bucket}/{layout.checkpoints}",
        "RESULTS_URI": f"{bucket}/{layout.results}",
        "TRAINYARD_RUN": run.run,
        "TRAINYARD_ATTEMPT": str(attempt),
        "METRICS_DIR": str(metrics),
        "TRAINYARD_CACHE": str(cache),
        "AWS_REGION": manifest.region,
        "AWS_DEFAULT_REGION": manifest.region,
        "GLOO_SOCKET_IFNAME": interface_of(address),
        # A fresh agent and a survivor deadlock on a shared store (torch 2.15).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    group = manifest.groups[0]
    accelerated = manifest.node.accelerators
    if group.gpus and accelerated:
        found["NCCL_SOCKET_IFNAME"] = "^docker,lo,veth"
    if group.efa_interfaces and accelerated:
        found["NCCL_NET_PLUGIN"] = "ofi"  # makes a silent fall-back to TCP an error
    if run.job.resume:
        found["RESUME_URI"] = f"{bucket}/{RunLayout(run.job.resume).checkpoints}"
    return found | dict(run.job.environment)


def rank_logs(logs: Path) -> dict[int, Path]:
    """Local rank -> folder of its stdout.log and stderr.log, as torchrun lays them: `<id>/attempt_0/<rank>`."""
    return {int(folder.name): folder for folder in logs.glob("*/attempt_0/*") if folder.name.isdigit()}


_FAILURE = re.compile(
    r"time\s*:\s*(?P<time>\S+)\s*\n.*?rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s*\n"
    r".*?exitcode\s*:\s*(?P<exitcode>-?\d+)",
    re.DOTALL,
)


def failures_in(report: str, logs: Path, noticed: float) -> tuple[RankFailure, ...]:
    """Ranks that torchrun's closing report on stderr names, each with the tail of its own stderr.

    `noticed` is the time used where torchrun's own can't be read.
    """
    folders = rank_logs(logs)
    found: dict[int, RankFailure] = {}
    for match in _FAILURE.finditer(report):
        rank, local, exitcode = int(match["rank"]), int(match["local"]), int(match["exitcode"])
        tail = _RANK.sub("", _tail(folders[local] / "stderr.log")) if local in folders else ""
        lines = [line for line in tail.splitlines() if line.strip()]
        message = f"ended by signal {-exitcode}" if exitcode < 0 else _last_words(lines) or f"exit code {exitcode}"
        found[rank] = RankFailure(
            rank=rank, time=_moment(match["time"], noticed), exitcode=exitcode, message=message, traceback=tail
        )
    return tuple(found[rank] for rank in sorted(found))


def _moment(text: str, otherwise: float) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return otherwise


def _last_words(lines: list[str]) -> str:
    """The exception's own line: the last that is not indented and not a warning of the interpreter's shutdown."""
    for line in reversed(lines):
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)?\b.*", line) and not line.startswith(" "):
            if "Warning" in line.split(":")[0]:
                continue
            return line[:400]
    return ""


def _tail(file: Path) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TRACEBACK_BYTES))
        return stream.read().decode(errors="replace")
