"""`python -m trainyard.node.controller`: the controller on the head node, run by systemd."""

import logging
import os
import signal
import socket
import sys
import threading
import time

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import clients
from trainyard.aws.s3 import Bucket
from trainyard.log import configure_logging
from trainyard.models.connection import ControllerEndpoint
from trainyard.models.events import ServiceEvent
from trainyard.models.layout import CONTROLLER_ENDPOINT
from trainyard.node.controller.agent_server import AgentServer
from trainyard.node.controller.controller import Controller
from trainyard.node.events import open_event_writer
from trainyard.node.identity import BASE, EXIT_NEWER_BUNDLE, Node, is_outdated, read_manifest, read_node

POLL_SECONDS = 1.0
PUBLISHED_POLL_SECONDS = 5.0
CONNECT_SECONDS = 5.0
UNREACHABLE_SECONDS = 60.0
READY_FILE = BASE / "controller.ready"  # the playbook waits until it has the id of this process
LOG = logging.getLogger("controller")


def main() -> int:
    """Control runs until SIGTERM or SIGINT, or until a newer bundle exists; the exit code."""
    # The controller repeats its requests itself, and does other work while a service does not respond.
    clients.LIMITS.max_attempts, clients.LIMITS.read_timeout_seconds = 2, 10.0
    node, manifest = read_node(), read_manifest()
    configure_logging(node=node.instance)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server, staging = AgentServer(node), Bucket(manifest.staging_bucket, node.region, node.account)
    server.start(staging)
    try:
        with open_event_writer(node, manifest, "controller") as writer:
            fields = {"service": "controller", "address": node.address}
            READY_FILE.write_text(str(os.getpid()))
            writer.write_event(ServiceEvent.model_validate({**node.event_fields(time.time()), **fields}))
        return _control(node, Controller(node, manifest, server), server, staging, stop)
    finally:
        server.close()


def _control(node: Node, controller: Controller, server: AgentServer, staging: Bucket, stop: threading.Event) -> int:
    """Control runs until `stop` is set, or until a newer bundle exists. Returns the exit code.

    A replaced head may still run while the new head starts: its controller then takes no steps.
    """
    checked_at = time.monotonic()
    while not stop.is_set():
        try:
            if time.monotonic() >= checked_at + PUBLISHED_POLL_SECONDS:
                checked_at = time.monotonic()
                if not _is_published(server, staging):
                    server.close()  # its agents connect to the other controller
                    return _wait_for_other_controller(node, staging, stop)
            controller.step()
        except Exception as error:  # AWS may be unavailable; the lease limits for how long
            LOG.error("%s: %s", type(error).__name__, error)
            stop.wait(POLL_SECONDS)
        if is_outdated(node):
            LOG.info("restart: a newer bundle exists")
            return EXIT_NEWER_BUNDLE
        server.wait(POLL_SECONDS)
    return 0


def _is_published(server: AgentServer, staging: Bucket) -> bool:
    """Return whether agents find this server. If S3 does not respond, the run is controlled without knowing it."""
    try:
        return server.is_published(staging)
    except (BotoCoreError, ClientError) as error:
        LOG.warning("%s cannot be read: %s", CONTROLLER_ENDPOINT, error)
        return True


def _wait_for_other_controller(node: Node, staging: Bucket, stop: threading.Event) -> int:
    """Wait while the controller of another head is reachable; return the exit code.

    When it is not any more, systemd starts the controller of this head again, which agents then find.
    """
    reachable_at = time.monotonic()
    LOG.info("agents find the controller of another head: this controller takes no steps")
    while not stop.wait(PUBLISHED_POLL_SECONDS):
        if is_outdated(node):
            return EXIT_NEWER_BUNDLE
        if _is_reachable(staging):
            reachable_at = time.monotonic()
        elif time.monotonic() > reachable_at + UNREACHABLE_SECONDS:
            LOG.warning("the controller of the other head is not reachable: this controller starts again")
            return 1
    return 0


def _is_reachable(staging: Bucket) -> bool:
    """Return whether the server that agents find accepts connections; True if S3 does not respond."""
    try:
        endpoint = ControllerEndpoint.model_validate_json(staging.read(CONTROLLER_ENDPOINT))
        socket.create_connection((endpoint.address, endpoint.port), CONNECT_SECONDS).close()
    except OSError:
        return False
    except (BotoCoreError, ClientError) as error:
        LOG.warning("%s cannot be read: %s", CONTROLLER_ENDPOINT, error)
    return True


if __name__ == "__main__":
    sys.exit(main())
