"""The `process` back-end: a node is a folder, a tree of processes and its own loopback address. Linux, without root."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.metadata import CONTAINER_PAGE
from rehearsal.hypervisor.process import cloudconfig
from rehearsal.hypervisor.process import systemctl as systemctl_module
from rehearsal.hypervisor.processes import MARK, kill_marked
from trainyard.models.report import BackendName, NotRehearsed, Scaled

_ROOT = Path(__file__).parents[3]
_FOLDERS = ("etc/systemd/system", "usr/bin", "run", "var/log", "tmp", "root")
LOG_LINES = 15
_WHY_PROCESS = "the process back-end needs no root and no virtual machine"


class ProcessBackend:
    """Nodes as processes under `folder`/nodes; every one bears the folder in its environment."""

    name: BackendName = "process"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in self._nodes:
            self.kill(instance)

    def reach(self, url: str) -> str:
        return url

    def plug(self, instance: str, address: str) -> socket.socket:
        return socket.create_server((address, 0))

    def root(self, instance: str) -> Path:
        return self.folder / "nodes" / instance

    def boot(self, spec: NodeSpec) -> None:
        if spec.made_of is not None:
            raise RuntimeError(f"{spec.id} boots from an image of {spec.made_of}, and a node that is a folder has none")
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
        (root / "run/runcmd.json").write_text(json.dumps(config.commands))
        program(root / "usr/bin/systemctl", f'exec {sys.executable} -S -E "{systemctl_module.__file__}" "$@"')
        # The image's Python: the bootstrap's unit names /usr/bin/python3.
        program(root / "usr/bin/python3", f'exec {sys.executable} "$@"')
        with (root / "var/log/init.log").open("wb") as log:
            self._nodes[spec.id] = subprocess.Popen(
                [sys.executable, "-m", "rehearsal.hypervisor.process.init"],
                cwd=_ROOT,
                env=self.environment(spec, root),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def environment(self, spec: NodeSpec, root: Path) -> dict[str, str]:
        """A node's whole environment: nothing of the operator's own comes along."""
        return {
            "PATH": f"{root}/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{root}/root",
            "TMPDIR": f"{root}/tmp",  # noqa: S108 (the node's own)
            # Else below the user's own home, which Ansible asks the system for.
            "ANSIBLE_REMOTE_TEMP": f"{root}/tmp",  # noqa: S108 (the node's own)
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(_ROOT),
            "TRAINYARD_ROOT": str(root),
            MARK: str(self.folder),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": spec.metadata_endpoint,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": spec.metadata_endpoint + CONTAINER_PAGE,
            **spec.environment,
        }

    def stop(self, instance: str) -> None:
        process = self._nodes.get(instance)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def kill(self, instance: str) -> None:
        process = self._nodes.get(instance)
        kill_marked(self.folder, self.root(instance))
        if process is not None:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def alive(self, instance: str) -> bool:
        process = self._nodes.get(instance)
        return process is not None and process.poll() is None

    def switched_itself_off(self, instance: str) -> bool:
        return False  # a folder has no such command

    def log_tails(self) -> str:
        parts = []
        for log in sorted((self.folder / "nodes").glob("*/var/log/*.log")):
            text = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            if text:
                parts.append("\n".join([f"--- {log.relative_to(self.folder / 'nodes')}", *text]))
        return "\n".join(parts)

    def scaled(self) -> list[Scaled]:
        if not self._nodes:
            return []
        return [
            Scaled(what="EC2 instances", by="folders with process trees on loopback addresses", why=_WHY_PROCESS),
            Scaled(what="cloud-init", by="its write_files and runcmd, run by the back-end", why=_WHY_PROCESS),
            Scaled(what="systemd", by="a supervisor that runs the same unit files", why=_WHY_PROCESS),
            Scaled(
                what="the image's /usr/bin/python3", by="the Python that runs the rehearsal", why="a node has no image"
            ),
            Scaled(what="a network between nodes", by="the loopback interface", why=_WHY_PROCESS),
            Scaled(what="TLS of AWS's endpoints", by="plain HTTP on the loopback", why="the emulated AWS is local"),
            Scaled(
                what="the metadata service at 169.254.169.254",
                by="one on a high port of each node's address; after boot, credentials by the container provider",
                why="a link-local address needs root",
            ),
        ]

    def not_rehearsed(self) -> list[NotRehearsed]:
        if not self._nodes:
            return []
        return [
            NotRehearsed(what="security groups, routes and NAT", why="all nodes share the machine's loopback"),
            NotRehearsed(what="the node's boot, its packages and kernel", why=_WHY_PROCESS),
            NotRehearsed(what="SSM Session Manager", why="no agent runs on a node that is a folder"),
        ]


def program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
