"""The torchrun command of an attempt or a health check, and the environment variables of its processes."""

import fcntl
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.models.run import Master, RunRecord
from trainyard.models.run_variables import run_variables

JOIN_SECONDS = 300.0
# Modules with the same options. The supervisor replaces ranks that a signal ends.
TORCHRUN, TRAINER_LAUNCHER, SUPERVISOR = "torch.distributed.run", "trainer.launcher", "trainer.recovery.supervisor"
STANDBY = "--standby"  # of trainer.launcher
# Name of aws-ofi-nccl up to 1.11. Newer versions accept it in NCCL_NET (nvidia_plugin_name_fixup in its
# src/nccl_ofi_interface_nvidia.cpp).
OFI_PLUGIN_NAME = "AWS Libfabric"
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def torchrun_command(
    *,
    python: Path,
    nodes: Sequence[str],
    instance: str,
    master: Master,
    rendezvous: str,
    processes: int,
    job: list[str],
    logs: Path,
    join_seconds: float = JOIN_SECONDS,
    binds_numa: bool = False,
    launcher: str = TORCHRUN,
) -> list[str]:
    """The command line of torchrun on the node `instance`, with `processes` worker processes.

    `nodes`: instance ids in the order of their node ranks. The rendezvous is static: the torchrun of node rank 0 serves
    the store on the port of `master`, and the others connect to it for up to `join_seconds`, also if it starts later
    (torch 2.15, static_tcp_rendezvous.py). torchrun does not restart workers: the controller starts a new attempt.
    Every attempt and every health check has a different rendezvous id. `binds_numa`: bind each process to the CPUs of
    its GPU's NUMA node. `launcher`: module of torchrun, or one of the built-in trainer with the same options.
    """
    return [
        str(python),
        "-m",
        launcher,
        f"--nnodes={len(nodes)}",
        f"--node-rank={nodes.index(instance)}",
        f"--nproc-per-node={processes}",
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--master-addr={master.address}",
        f"--master-port={master.port}",
        f"--rdzv-id={rendezvous}",
        f"--rdzv-conf=timeout={round(join_seconds)}",
        f"--log-dir={logs}",
        "--redirects=3",
        "--monitor-interval=0.1",
        *(["--numa-binding=node"] if binds_numa else []),
        *job,
    ]


def find_interface(address: str) -> str:
    """Name of the network interface whose network contains `address`. Raises OSError if there is none."""
    target = struct.unpack("!I", socket.inet_aton(address))[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:

        def query(request: int, name: str) -> int:
            result = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
            number: int = struct.unpack("!I", result[20:24])[0]
            return number

        networks: list[tuple[bool, str]] = []
        for _, name in socket.if_nameindex():
            try:
                local, mask = query(_SIOCGIFADDR, name), query(_SIOCGIFNETMASK, name)
            except OSError:  # an interface without an IPv4 address
                continue
            if local & mask == target & mask:
                networks.append((local != target, name))
        if networks:
            return min(networks)[1]  # preferably the interface that has this address
    raise OSError(f"no network interface is in the network of {address}")


def network_variables(manifest: Manifest, group: WorkerGroup, address: str, image: str | None) -> dict[str, str]:
    """Variables with which gloo and NCCL find their network. `image`: container image of the job, if any."""
    variables = {
        "AWS_REGION": manifest.region,
        "AWS_DEFAULT_REGION": manifest.region,
        "GLOO_SOCKET_IFNAME": find_interface(address),
        "PYTHONUNBUFFERED": "1",
    }
    if group.gpus and manifest.node.use_gpus:
        variables |= {"NCCL_SOCKET_IFNAME": "^docker,lo,veth", "NCCL_DEBUG": "WARN"}
    # A container image has its own plugin: before 1.15 its name is always libnccl-net.so.
    if uses_efa(manifest, group) and image is None:
        # If this plugin does not load, NCCL falls back to TCP without an error: the health check detects it.
        variables["NCCL_NET_PLUGIN"] = "ofi"
    return variables


def uses_efa(manifest: Manifest, group: WorkerGroup) -> bool:
    """Whether the job uses EFA on nodes of this group."""
    return bool(group.efa_interfaces and manifest.node.use_gpus)


def job_variables(
    *,
    manifest: Manifest,
    group: WorkerGroup,
    run: RunRecord,
    attempt: int,
    instance: str,
    address: str,
    metrics: Path,
    request: Path,
    cache: Path,
    model: str | None = None,
    network: str | None = None,
) -> dict[str, str]:
    """Environment variables of the job.

    `instance`: EC2 instance id of this node. `address`: its private IPv4 address. `model`: folder of the
    job's model, or its name in the Hugging Face hub. `network`: NCCL's name for the network of the health check; None
    without a health check. With EFA, NCCL fails if it does not find that network.
    """
    variables = run_variables(
        manifest=manifest,
        job=run.job,
        layout=RunLayout(run.run),
        attempt=attempt,
        node=instance,
        metrics=metrics,
        request=request,
        cache=cache,
        model=model,
    )
    variables |= network_variables(manifest, group, address, run.job.container)
    if uses_efa(manifest, group):
        variables["NCCL_NET"] = network or OFI_PLUGIN_NAME
    return variables | dict(run.job.environment)
