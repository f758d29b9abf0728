"""`python -m trainyard.node.controller`: the controller on the head node, run by systemd."""

import logging
import signal
import sys
import threading
import time

from trainyard.log import configure_logging
from trainyard.models.events import ServiceEvent
from trainyard.node.controller.controller import POLL_SECONDS, Controller
from trainyard.node.events import open_event_writer
from trainyard.node.identity import EXIT_NEWER_BUNDLE, is_outdated, read_manifest, read_node

LOG = logging.getLogger("controller")


def main() -> int:
    """Control runs until SIGTERM or SIGINT, or until a newer bundle exists; the exit code."""
    node, manifest = read_node(), read_manifest()
    configure_logging(node=node.instance)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    controller = Controller(node, manifest)
    with open_event_writer(node, manifest, "controller") as writer:
        fields = {"service": "controller", "address": node.address}
        writer.write_event(ServiceEvent.model_validate({**node.event_fields(time.time()), **fields}))
    while not stop.wait(POLL_SECONDS):
        try:
            controller.step()
        except Exception as error:  # AWS may be unavailable; the lease limits for how long
            LOG.error("%s: %s", type(error).__name__, error)
        if is_outdated(node):
            LOG.info("restart: a newer bundle exists")
            return EXIT_NEWER_BUNDLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
