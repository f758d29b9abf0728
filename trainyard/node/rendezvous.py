"""The rendezvous store on the head: `python -m trainyard.node.rendezvous`, supervised by systemd.

torchrun's agents meet in it (`--rdzv-backend=c10d`, `is_host=0`), so that workers may come and go, and so do the
processes of a check. It binds the head's own address only: a plain TCPStore takes its port on every address, hence the
pre-bound socket.
"""

import resource
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

from trainyard.models.events import ServiceEvent
from trainyard.node.events import events_writer
from trainyard.node.identity import manifest_at_boot, this_node


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on one address, ready for the store."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((address, port))
    found.listen(1024)
    return found


def main() -> int:
    # Imported late: it takes seconds, and a bad manifest is told at once.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    node, manifest = this_node(), manifest_at_boot()
    # In a check every process of every node has a connection; systemd's soft limit is 1,024.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    port = manifest.head.rendezvous_port
    listener = listen(node.address, port)
    store = TCPStore(
        node.address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listener.detach(),
    )
    print(f"rendezvous store on {node.address}:{store.port}", flush=True)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    with events_writer(node, manifest, "rendezvous") as writer:
        writer.tell(
            ServiceEvent.model_validate(
                {**node.stamp(time.time()), "service": "rendezvous", "address": f"{node.address}:{port}"}
            )
        )
    ending.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
