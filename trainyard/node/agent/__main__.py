"""`python -m trainyard.node.agent`: the agent of a worker node, run by systemd."""

import signal
import sys

from trainyard.aws.s3 import Bucket
from trainyard.models.layout import CURRENT_RUN
from trainyard.models.run import RunRecord
from trainyard.node.agent.agent import Agent
from trainyard.node.identity import manifest_at_boot, this_node


def main() -> int:
    node, manifest = this_node(), manifest_at_boot()
    run = RunRecord.model_validate_json(Bucket(manifest.staging_bucket, node.region).read(CURRENT_RUN))
    agent = Agent(node, manifest, run)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.ending.set())
    return agent.serve()


if __name__ == "__main__":
    sys.exit(main())
