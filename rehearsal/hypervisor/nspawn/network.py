"""The network of booted nodes: a switch in a namespace of its own, a namespace for each node, and nothing outside.

The machine's own interfaces, routes and packet filter stay as they are. What a node reaches of this machine it reaches
through sockets that listen inside these namespaces.
"""

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

GATEWAY = "169.254.77.1"  # of the switch: link-local, so that it is in no subnet of a stack
METADATA = "169.254.169.254"
NAMES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
# systemd's own: it forwards between sockets, in C, for as many connections as are asked for.
PROXY = ("/usr/lib/systemd/systemd-socket-proxyd", "/lib/systemd/systemd-socket-proxyd")
T = TypeVar("T")


def ip(*lines: str, within: str | None = None) -> None:
    """Run lines of `ip`, in a namespace where one is given. Raises RuntimeError with the words of a failure."""
    command = ["ip", *(["-n", within] if within else []), "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {within or ''} can't do {'; '.join(lines)}: {done.stderr.strip()}")


def within(namespace: str, call: Callable[[], T]) -> T:
    """Call in a network namespace, in a thread of its own: a socket stays in the namespace where it was made."""
    found: list[T] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            with (NAMES / namespace).open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"can't enter the network namespace {namespace}")
            found.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def listening(namespace: str, address: str, port: int) -> socket.socket:
    """A TCP socket that listens there."""

    def make() -> socket.socket:
        made = socket.create_server((address, port), backlog=128)
        made.set_inheritable(False)
        return made

    return within(namespace, make)


class Network:
    """The switch, from `with` to its end. `mark` tells the namespaces of one rehearsal from another's."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.hub = f"trainyard-{mark}"
        self._relays: dict[str, subprocess.Popen[bytes]] = {}
        self._doors: dict[str, str] = {}

    def open(self) -> None:
        ip(f"netns add {self.hub}")
        ip(
            "link set lo up",
            "link add switch type bridge",
            f"addr add {GATEWAY}/32 dev switch",
            "link set switch up",
            "route add default dev switch",
            within=self.hub,
        )

    def node(self, instance: str) -> str:
        """Name of a node's namespace."""
        return f"{self.hub}-{instance.removeprefix('i-')}"

    def plug(self, instance: str, address: str) -> socket.socket:
        """A node's place in the network; its value listens there for what the node asks the metadata service."""
        name, port = self.node(instance), f"v{instance[-10:]}"
        ip(f"netns add {name}")
        ip(
            f"link add {port} type veth peer name eth0 netns {name}",
            f"link set {port} master switch up",
            within=self.hub,
        )
        ip(
            "link set lo up",
            f"addr add {METADATA}/32 dev lo",
            f"addr add {address}/20 dev eth0",
            "link set eth0 up",
            "route add default dev eth0",
            within=name,
        )
        return listening(name, METADATA, 80)

    def cut(self, instance: str) -> None:
        """Pull the plug: the node lives on, alone."""
        ip(f"link set v{instance[-10:]} down", within=self.hub)

    def unplug(self, instance: str) -> None:
        """Once nothing runs in it."""
        if (NAMES / self.node(instance)).exists():
            ip(f"netns del {self.node(instance)}")

    def reach(self, url: str) -> str:
        """Where nodes reach a server that listens on this machine's loopback."""
        where = urlsplit(url)
        assert where.port is not None
        if url not in self._doors:
            with listening(self.hub, GATEWAY, where.port) as door:
                self._relays[url] = _relay(door, f"{where.hostname}:{where.port}")
            self._doors[url] = f"{where.scheme}://{GATEWAY}:{where.port}"
        return self._doors[url]

    def close(self) -> None:
        for relay in self._relays.values():
            relay.terminate()
            relay.wait()
        if (NAMES / self.hub).exists():
            ip(f"netns del {self.hub}")


def _relay(door: socket.socket, target: str) -> "subprocess.Popen[bytes]":
    """Sockets handed over as systemd does (sd_listen_fds(3)): the first is descriptor 3, LISTEN_PID the receiver's."""
    program = next(path for path in PROXY if Path(path).exists())
    return subprocess.Popen(
        ["/bin/sh", "-c", f'LISTEN_PID=$$ exec {program} --connections-max=4096 "$0" 3<&0', target],
        env={**os.environ, "LISTEN_FDS": "1"},
        stdin=door.fileno(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
