"""The torchrun command of an attempt or a check, and the variables of what it runs."""

import fcntl
import socket
import struct
from pathlib import Path

from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Head, Manifest, WorkerGroup
from trainyard.models.run import RunRecord

JOIN_SECONDS = 300.0
# aws-ofi-nccl up to 1.11 calls itself so, and newer ones do where NCCL_NET says so (nvidia_plugin_name_fixup in its
# src/nccl_ofi_interface_nvidia.cpp).
ANY_OFI_PLUGIN = "AWS Libfabric"
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
# Keep-alive slack of 5 s x 3: tighter values expire on loaded cores and set off endless rounds of rendezvous.
_RENDEZVOUS = "is_host=0,keep_alive_interval=5,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout={join}"


def torchrun_command(
    *,
    python: Path,
    head: Head,
    rendezvous: str,
    processes: int,
    nodes: int,
    address: str,
    job: list[str],
    logs: Path,
    join_seconds: float = JOIN_SECONDS,
) -> list[str]:
    """The command line of torchrun on one of `nodes` nodes, `processes` on each.

    Restarts are the controller's: every attempt and every check has a rendezvous id of its own.
    """
    return [
        str(python),
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={processes}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={head.address}:{head.rendezvous_port}",
        f"--rdzv-id={rendezvous}",
        f"--rdzv-conf={_RENDEZVOUS.format(join=round(join_seconds))}",
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

        networks: list[tuple[bool, str]] = []
        for _, name in socket.if_nameindex():
            try:
                own, mask = ask(_SIOCGIFADDR, name), ask(_SIOCGIFNETMASK, name)
            except OSError:  # an interface without an IPv4 address
                continue
            if own & mask == wanted & mask:
                networks.append((own != wanted, name))
        if networks:
            return min(networks)[1]  # the one that has the very address, where there is one
    raise OSError(f"no network interface holds {address}")


def network_variables(manifest: Manifest, group: WorkerGroup, address: str, image: str | None) -> dict[str, str]:
    """What gloo and NCCL need to meet, on the node or in a container of an image."""
    found = {
        "AWS_REGION": manifest.region,
        "AWS_DEFAULT_REGION": manifest.region,
        "GLOO_SOCKET_IFNAME": interface_of(address),
        # A fresh agent and a survivor deadlock on a shared store (torch 2.15).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    accelerated = manifest.node.accelerators
    if group.gpus and accelerated:
        found["NCCL_SOCKET_IFNAME"] = "^docker,lo,veth"
    # An image has its own plugin, by a name that it knows: before 1.15 it is libnccl-net.so and no other.
    if on_efa(manifest, group) and image is None:
        # Where that plugin does not load, NCCL still falls back to TCP in silence: the check before the job sees it.
        found["NCCL_NET_PLUGIN"] = "ofi"
    return found


def on_efa(manifest: Manifest, group: WorkerGroup) -> bool:
    return bool(group.efa_interfaces and manifest.node.accelerators)


def job_variables(
    *,
    manifest: Manifest,
    group: WorkerGroup,
    run: RunRecord,
    attempt: int,
    address: str,
    metrics: Path,
    request: Path,
    cache: Path,
    network: str | None = None,
) -> dict[str, str]:
    """Variables of the job beside the node's own. `network`: what NCCL calls the one that the nodes were verified
    on; none where no check has told. On EFA any other one is an error, and so is none."""
    layout = RunLayout(run.run)
    bucket = f"s3://{manifest.data_bucket}"
    found = {
        "DATA_URI": run.job.data_uri,
        "CHECKPOINT_URI": f"{bucket}/{layout.checkpoints}",
        "RESULTS_URI": f"{bucket}/{layout.results}",
        "TRAINYARD_RUN": run.run,
        "TRAINYARD_ATTEMPT": str(attempt),
        "METRICS_DIR": str(metrics),
        "CHECKPOINT_REQUEST": str(request),
        "TRAINYARD_CACHE": str(cache),
        **network_variables(manifest, group, address, run.job.container),
    }
    if on_efa(manifest, group):
        found["NCCL_NET"] = network or ANY_OFI_PLUGIN
    if manifest.fsx:
        found["FSX_PATH"] = manifest.fsx.mount_point
    if run.job.resume:
        found["RESUME_URI"] = f"{bucket}/{RunLayout(run.job.resume).checkpoints}"
    return found | dict(run.job.environment)
