"""The rendezvous store on the head: `python -m trainyard.node.rendezvous`, run by systemd.

torchrun on the workers (`--rdzv-backend=c10d`, `is_host=0`) and the processes of health checks use it, so that it
outlives any worker. It listens only on the head's private address. A plain TCPStore listens on every address, so it
gets a socket that is already bound.
"""

import logging
import resource
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

from trainyard.log import configure_logging
from trainyard.models.events import ServiceEvent
from trainyard.node.events import open_event_writer
from trainyard.node.identity import read_manifest, read_node

LOG = logging.getLogger("rendezvous")


def create_listener(address: str, port: int) -> socket.socket:
    """A listening socket on one address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(1024)
    return listener


def main() -> int:
    """Serve the store until SIGTERM or SIGINT; the exit code."""
    # Imported here because it takes seconds: systemd sees an invalid manifest at once.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    node, manifest = read_node(), read_manifest()
    configure_logging(node=node.instance)
    # In a health check every process of every node has a connection; systemd's soft limit is 1,024.
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    port = manifest.head.rendezvous_port
    listener = create_listener(node.address, port)
    store = TCPStore(
        node.address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listener.detach(),
    )
    LOG.info("rendezvous store on %s:%s", node.address, store.port)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with open_event_writer(node, manifest, "rendezvous") as writer:
        fields = {"service": "rendezvous", "address": f"{node.address}:{port}"}
        writer.write_event(ServiceEvent.model_validate({**node.event_fields(time.time()), **fields}))
    stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
