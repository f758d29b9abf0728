"""`python -m trainyard.node.agent`: the agent of a worker node, run by systemd."""

import signal
import sys

from trainyard.aws.s3 import Bucket
from trainyard.log import configure_logging, set_run
from trainyard.models.layout import CURRENT_RUN
from trainyard.models.run import RunRecord
from trainyard.node.agent.agent import Agent
from trainyard.node.identity import read_manifest, read_node


def main() -> int:
    """Serve the current run until SIGTERM or SIGINT; the exit code."""
    node, manifest = read_node(), read_manifest()
    configure_logging(node=node.instance)
    run = RunRecord.model_validate_json(Bucket(manifest.staging_bucket, node.region).read(CURRENT_RUN))
    set_run(run.run)
    agent = Agent(node, manifest, run)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop_requested.set())
    return agent.serve()


if __name__ == "__main__":
    sys.exit(main())
