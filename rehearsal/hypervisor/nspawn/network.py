"""The network of booted nodes: one network namespace per node, connected by a bridge in a namespace of its rehearsal.

The interfaces, routes and packet filter of this computer do not change. Nodes reach services on this computer through
sockets that listen inside these namespaces.
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

GATEWAY = "169.254.77.1"  # address of the bridge: link-local, so that it is in no subnet of a stack
METADATA = "169.254.169.254"
NETNS_FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
# systemd's socket proxy, written in C: it forwards any number of connections.
PROXY = ("/usr/lib/systemd/systemd-socket-proxyd", "/lib/systemd/systemd-socket-proxyd")
T = TypeVar("T")


def run_ip(*lines: str, namespace: str | None = None) -> None:
    """Run `ip` commands as a batch, in a network namespace if one is given. Raises RuntimeError with the stderr."""
    command = ["ip", *(["-n", namespace] if namespace else []), "-batch", "-"]
    process = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if process.returncode:
        option = f"-n {namespace} " if namespace else ""
        raise RuntimeError(f"ip {option}{'; '.join(lines)} failed: {process.stderr.strip()}")


def call_in_namespace(namespace: str, call: Callable[[], T]) -> T:
    """Call a function in a network namespace, in a new thread. Sockets stay in the namespace that creates them."""
    results: list[T] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            with (NETNS_FOLDER / namespace).open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def listen_in_namespace(namespace: str, address: str, port: int) -> socket.socket:
    """Return a TCP socket that listens in a network namespace."""

    def create() -> socket.socket:
        listener = socket.create_server((address, port), backlog=128)
        listener.set_inheritable(False)
        return listener

    return call_in_namespace(namespace, create)


class Network:
    """The network of one rehearsal, from `open` to `close`. `suffix` makes its namespaces unique."""

    def __init__(self, suffix: str) -> None:
        self.switch_namespace = f"trainyard-{suffix}"
        self._proxies: dict[str, subprocess.Popen[bytes]] = {}
        self._urls: dict[str, str] = {}

    def open(self) -> None:
        """Create the namespace with the bridge."""
        run_ip(f"netns add {self.switch_namespace}")
        run_ip(
            "link set lo up",
            "link add switch type bridge",
            f"addr add {GATEWAY}/32 dev switch",
            "link set switch up",
            "route add default dev switch",
            namespace=self.switch_namespace,
        )

    def namespace_name(self, instance: str) -> str:
        """Return the name of a node's network namespace."""
        return f"{self.switch_namespace}-{instance.removeprefix('i-')}"

    def attach_network(self, instance: str, address: str) -> socket.socket:
        """Create a node's namespace and connect it to the bridge. Returns the listener of its metadata service."""
        name, interface = self.namespace_name(instance), _interface(instance)
        run_ip(f"netns add {name}")
        run_ip(
            f"link add {interface} type veth peer name eth0 netns {name}",
            f"link set {interface} master switch up",
            namespace=self.switch_namespace,
        )
        run_ip(
            "link set lo up",
            f"addr add {METADATA}/32 dev lo",
            f"addr add {address}/20 dev eth0",
            "link set eth0 up",
            "route add default dev eth0",
            namespace=name,
        )
        return listen_in_namespace(name, METADATA, 80)

    def isolate(self, instance: str, is_isolated: bool) -> None:
        """Let the bridge drop all packets between the isolated nodes, or forward them again (bridge(8), isolated)."""
        state = "on" if is_isolated else "off"
        run_ip(f"link set {_interface(instance)} type bridge_slave isolated {state}", namespace=self.switch_namespace)

    def detach_network(self, instance: str) -> None:
        """Delete a node's namespace. No process may run in it."""
        if (NETNS_FOLDER / self.namespace_name(instance)).exists():
            run_ip(f"netns del {self.namespace_name(instance)}")

    def url_for_nodes(self, url: str) -> str:
        """Return the URL under which nodes reach a server on this computer's loopback address."""
        parts = urlsplit(url)
        assert parts.port is not None
        if url not in self._urls:
            with listen_in_namespace(self.switch_namespace, GATEWAY, parts.port) as listener:
                self._proxies[url] = _start_proxy(listener, f"{parts.hostname}:{parts.port}")
            self._urls[url] = f"{parts.scheme}://{GATEWAY}:{parts.port}"
        return self._urls[url]

    def close(self) -> None:
        """Stop the proxies and delete the namespace with the bridge."""
        for proxy in self._proxies.values():
            proxy.terminate()
            proxy.wait()
        if (NETNS_FOLDER / self.switch_namespace).exists():
            run_ip(f"netns del {self.switch_namespace}")


def _interface(instance: str) -> str:
    """Return the name of a node's interface at the bridge; it has at most 15 characters."""
    return f"v{instance[-10:]}"


def _start_proxy(listener: socket.socket, target: str) -> "subprocess.Popen[bytes]":
    """Start a proxy with systemd's socket passing (sd_listen_fds(3)): descriptor 3, LISTEN_PID is the proxy's id."""
    program = next(path for path in PROXY if Path(path).exists())
    return subprocess.Popen(
        ["/bin/sh", "-c", f'LISTEN_PID=$$ exec {program} --connections-max=4096 "$0" 3<&0', target],
        env={**os.environ, "LISTEN_FDS": "1"},
        stdin=listener.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # a kept rehearsal leaves the terminal
        start_new_session=True,
    )
