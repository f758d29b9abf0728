"""`python -m trainyard.node.controller`: the controller on the head node, run by systemd."""

import signal
import sys
import threading
import time

from trainyard.models.events import ServiceEvent
from trainyard.node.controller.controller import POLL_SECONDS, Controller
from trainyard.node.events import events_writer
from trainyard.node.identity import NEWER_CODE, manifest_at_boot, outdated, this_node


def main() -> int:
    node, manifest = this_node(), manifest_at_boot()
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    controller = Controller(node, manifest)
    with events_writer(node, manifest, "controller") as writer:
        writer.tell(
            ServiceEvent.model_validate({**node.stamp(time.time()), "service": "controller", "address": node.address})
        )
    while not ending.wait(POLL_SECONDS):
        try:
            controller.step()
        except Exception as error:  # AWS may be away for a while; the lease bounds how long that may last
            print(f"controller: {type(error).__name__}: {error}", flush=True)
        if outdated(node):
            print("controller: there is newer code", flush=True)
            return NEWER_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
