"""The process backend: a node is a folder, a process tree and a loopback address. It needs Linux, but not root."""

import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.process import cloudconfig
from rehearsal.hypervisor.process import nvidia_smi as nvidia_smi_module
from rehearsal.hypervisor.process import systemctl as systemctl_module
from rehearsal.hypervisor.process.gpus import create_gpus
from rehearsal.hypervisor.process.init import REBOOT
from rehearsal.hypervisor.processes import (
    REHEARSAL_VARIABLE,
    find_processes,
    kill_rehearsal_processes,
)
from trainyard.models.report import BackendName, NotRehearsed, Substitution

_ROOT = Path(__file__).parents[3]
_FOLDERS = ("etc/systemd/system", "usr/bin", "run", "var/log", "tmp", "root")
INIT_MODULE = "rehearsal.hypervisor.process.init"
CLOCK_FILE = "etc/clock-offset"
LOG_LINES = 15
_REASON = "the process backend needs no root and no virtual machine"


class ProcessBackend:
    """Runs nodes as processes under `folder`/nodes. The environment of each process names the folder."""

    name: BackendName = "process"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: set[str] = set()  # by `stop`
        self._specs: dict[str, NodeSpec] = {}
        self._has_clocks = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in self._nodes:
            self.kill(instance)

    def url_for_nodes(self, url: str) -> str:
        """Return the URL unchanged: nodes use the loopback network of this computer."""
        return url

    def attach_network(self, instance: str, address: str) -> socket.socket:
        """Return a listener for the metadata service on the node's loopback address."""
        return socket.create_server((address, 0))

    def root(self, instance: str) -> Path:
        """Return the root folder of a node."""
        return self.folder / "nodes" / instance

    def boot(self, spec: NodeSpec) -> None:
        """Create the node's folder and start its init process. Raises RuntimeError for a baked image."""
        if spec.image_source is not None:
            raise RuntimeError(
                f"{spec.id} boots from an image of {spec.image_source}, which the process backend does not support"
            )
        root = self.root(spec.id)
        if root.exists():
            shutil.rmtree(root)
        for name in _FOLDERS:
            (root / name).mkdir(parents=True)
        config = cloudconfig.parse(spec.user_data)
        for file in config.files:
            target = root / file.path.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.content)
            target.chmod(file.mode)
        (root / CLOCK_FILE).write_text("0\n")
        create_gpus(root, spec.gpus)
        (root / "run/runcmd.json").write_text(json.dumps(config.commands))
        assert systemctl_module.__file__ is not None
        for program in ("systemctl", "systemd-run"):
            write_script(root / "usr/bin" / program, sys.executable, "-S", "-E", systemctl_module.__file__, program)
        if spec.gpus:
            command = (sys.executable, nvidia_smi_module.__file__)
            write_script(root / "usr/bin/nvidia-smi", "env", f"PYTHONPATH={_ROOT}", *command)
        # The Python of the image: the bootstrap's unit starts /usr/bin/python3.
        write_script(root / "usr/bin/python3", sys.executable)
        self._specs[spec.id] = spec
        self._start_init(spec)

    def _start_init(self, spec: NodeSpec, *arguments: str) -> None:
        root = self.root(spec.id)
        with (root / "var/log/init.log").open("ab") as log:
            self._nodes[spec.id] = subprocess.Popen(
                [sys.executable, "-m", INIT_MODULE, *arguments],
                cwd=_ROOT,
                env=self.environment(spec, root),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def environment(self, spec: NodeSpec, root: Path) -> dict[str, str]:
        """Return the complete environment of a node; it has no variables of the operator's environment."""
        return {
            "PATH": f"{root}/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{root}/root",
            "TMPDIR": f"{root}/tmp",  # noqa: S108 (inside the node's folder)
            # Ansible's default is below the home folder that the system has for this user.
            "ANSIBLE_REMOTE_TEMP": f"{root}/tmp",  # noqa: S108 (inside the node's folder)
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(_ROOT),
            "TRAINYARD_ROOT": str(root),
            REHEARSAL_VARIABLE: str(self.folder),
            **({"CLOCK_OFFSET_FILE": str(root / CLOCK_FILE)} if self._has_clocks else {}),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": spec.metadata_endpoint,
            # The defaults are one second and one attempt, for the service of EC2. This machine responds more slowly.
            "AWS_METADATA_SERVICE_TIMEOUT": "5",
            "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3",
            **spec.environment,
        }

    def stop(self, instance: str) -> None:
        """Send SIGTERM to the node's init process, which stops the services."""
        process = self._nodes.get(instance)
        if process is not None and process.poll() is None:
            self._stopped.add(instance)
            process.send_signal(signal.SIGTERM)

    def kill(self, instance: str) -> None:
        """Kill all processes of the node."""
        process = self._nodes.get(instance)
        kill_rehearsal_processes(self.folder, self.root(instance))
        if process is not None:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def processes(self, instance: str) -> list[psutil.Process]:
        """Return the processes of the node."""
        return find_processes(self.folder, self.root(instance))

    def restart(self, instance: str) -> None:
        """Kill all processes of the node, and start its init process again."""
        self.kill(instance)
        self._start_init(self._specs[instance], REBOOT)

    def isolate(self, instance: str, is_isolated: bool) -> None:
        """Raise NotImplementedError: the nodes share the loopback interface."""
        raise NotImplementedError

    def limit_disks(self) -> None:
        """Raise NotImplementedError: the nodes share the disk of this machine."""
        raise NotImplementedError

    def allow_clock_steps(self) -> None:
        """Let the Python programs of nodes that boot later have their own time."""
        self._has_clocks = True

    def fill_disk(self, instance: str, is_full: bool) -> None:
        """Raise NotImplementedError: the nodes share the disk of this machine."""
        raise NotImplementedError

    def step_clock(self, instance: str, seconds: float) -> None:
        """Change the offset of the node's clock from that of this machine."""
        assert self._has_clocks, "the nodes booted with the clock of this machine"
        file = self.root(instance) / CLOCK_FILE
        temporary = file.with_suffix(".new")
        temporary.write_text(f"{seconds}\n")
        temporary.rename(file)

    def is_running(self, instance: str) -> bool:
        """Return whether the node's init process runs."""
        process = self._nodes.get(instance)
        return process is not None and process.poll() is None

    def has_powered_off(self, instance: str) -> bool:
        """Return whether the node has powered itself off: its init process exits with 0 at the end of a shutdown."""
        process = self._nodes.get(instance)
        return process is not None and process.poll() == 0 and instance not in self._stopped

    def log_tails(self) -> str:
        """Return the last lines of all log files of all nodes."""
        parts = []
        for log in sorted((self.folder / "nodes").glob("*/var/log/*.log")):
            text = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            if text:
                parts.append("\n".join([f"--- {log.relative_to(self.folder / 'nodes')}", *text]))
        return "\n".join(parts)

    def substitutions(self) -> list[Substitution]:
        """Return the substitutions of this backend; none before a node has booted."""
        if not self._nodes:
            return []
        substitutions = [
            ("EC2 instances", "folders with process trees on loopback addresses", _REASON),
            ("cloud-init", "write_files and runcmd, executed by the backend", _REASON),
            ("systemd", "a supervisor that runs the same unit files", _REASON),
            ("/usr/bin/python3 of the AMI", "the Python that runs the rehearsal", "a node has no AMI"),
            ("the network between nodes", "the loopback interface", _REASON),
            (
                "NVML and the kernel log of a node",
                "files of the node, which only --fault gpu changes",
                "this machine has no GPU, and its kernel log is not that of a node",
            ),
            ("TLS of AWS endpoints", "plain HTTP on the loopback interface", "the emulated AWS runs on this machine"),
            (
                "the metadata service at 169.254.169.254",
                "a metadata service on another port of each node's address",
                "a link-local address needs root",
            ),
        ]
        return [
            Substitution(original=original, replacement=replacement, reason=reason)
            for original, replacement, reason in substitutions
        ]

    def not_rehearsed(self) -> list[NotRehearsed]:
        """Return the parts that this backend does not run; none before a node has booted."""
        if not self._nodes:
            return []
        parts = [
            ("security groups; routes and NAT, except of requests to AWS", "all nodes share the loopback interface"),
            ("the boot, packages and kernel of a node", _REASON),
            ("SSM Session Manager", "a node of the process backend has no SSM agent"),
        ]
        return [NotRehearsed(subject=subject, reason=reason) for subject, reason in parts]


def write_script(file: Path, *command: str) -> None:
    """Write an executable shell script that runs the command with its own arguments appended."""
    file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    file.chmod(0o755)
