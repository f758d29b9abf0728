"""Runs the agent of a worker node: for the current run, and for the runs that follow on the node."""

import faulthandler
import signal
import threading

import boto3

from trainyard.log import configure_logging, set_run
from trainyard.models.run import RunRecord
from trainyard.node.agent.agent import Agent
from trainyard.node.events import read_current_run
from trainyard.node.health.monitor import create_monitor
from trainyard.node.identity import find_group, read_manifest, read_node
from trainyard.node.watchdog import report_progress


def main() -> int:
    """Serve the current run, and the runs that follow on this node, until SIGTERM or SIGINT; the exit code."""
    faulthandler.enable()  # it prints where a hung agent is when the watchdog of systemd sends SIGABRT
    # An agent that waits for AWS makes progress: in an outage one call has several requests of a minute each.
    boto3.setup_default_session()
    boto3.DEFAULT_SESSION.events.register("before-send", lambda **_: report_progress())
    node, manifest = read_node(), read_manifest()
    configure_logging(node=node.instance)
    run: RunRecord | None = read_current_run(node, manifest)
    stop, code = threading.Event(), 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    health = create_monitor(find_group(node, manifest))
    health.start()
    try:
        while run is not None and not stop.is_set():
            set_run(run.run)
            agent = Agent(node, read_manifest(), run, stop, health)
            code, run = agent.serve(), agent.next_run
    finally:
        health.stop()
    return code
