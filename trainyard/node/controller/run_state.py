"""State that all parts of the controller of one run use: the run's record, its control file, its nodes, its clock."""

import logging
from hashlib import sha256

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.s3 import Bucket
from trainyard.clock import Clock
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.models.run import Control, RunRecord
from trainyard.node.controller.control_file import ControlFile
from trainyard.node.controller.node_reports import AgentConnections
from trainyard.node.controller.node_states import NodeStates

LOG = logging.getLogger("controller")


class RunState:
    """State of one run. `run` and `members` are replaced when they change; `control` changes by `update_control`."""

    def __init__(self, run: RunRecord, data: Bucket, connections: AgentConnections, clock: Clock) -> None:
        self.run, self.data, self.clock = run, data, clock
        self.layout = RunLayout(run.run)
        self.node_states = NodeStates()
        self.members: list[str] = []
        self._connections = connections
        self._control_file = ControlFile(data, self.layout.control)
        self.control = self._control_file.read() or Control(healthy_nodes=run.healthy_nodes)
        connections.publish(run.run, self.control)

    def update_control(self, **changes: object) -> None:
        """Change `control.json`: first in S3, from which a restarted controller continues, then for the agents.

        Raises ObjectChangedError if the controller of another head has changed it.
        """
        control = self.control.model_copy(update=changes)
        self._control_file.write(control)
        self._publish(control)

    def abort_attempt(self) -> None:
        """Let the agents abort the current attempt, also while S3 does not respond. The next change stores it, too."""
        self._publish(self.control.model_copy(update={"aborted_attempt": self.control.attempt}))
        try:
            self._control_file.write(self.control)
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the end of attempt %d is not stored yet: %s", self.control.attempt, error)

    def _publish(self, control: Control) -> None:
        self.control = control
        self._connections.publish(self.run.run, control)

    def nodes_in_use(self) -> tuple[str, ...]:
        """Return the nodes of the current attempt, unless it has failed, and of the current health check."""
        checked = self.control.health_check.nodes if self.control.health_check else ()
        return checked if self.control.waiting_since is not None else (*self.control.nodes, *checked)

    def all_have_state(self, state: str) -> bool:
        """Return whether all nodes of the current attempt are in this state of it."""
        nodes = self.control.nodes
        return bool(nodes) and self.node_states.all_have_state(state, self.control.attempt, nodes)

    def find_newest_checkpoint(self) -> str:
        """Return the name of the newest complete checkpoint; empty without one.

        Only keys after the known checkpoint are listed: a large job has millions of them. The format of a custom job's
        checkpoints is not known: the result is a SHA-256 of the keys of its objects, which any new object changes.
        """
        prefix, known = self.layout.checkpoints, self.control.newest_checkpoint
        if self.run.job.train is None:
            keys = "\n".join(self.data.keys(prefix))
            return sha256(keys.encode()).hexdigest() if keys else ""
        newer = self.data.keys(prefix, f"{prefix}{known}0" if known else "")  # "0" is the character after "/"
        return max([known, *complete_checkpoints(newer, prefix)])
