"""The controller on the head: `python -m trainyard.node.controller`, run by systemd.

It decides on the health checks and attempts of a run. It requests a health check before an attempt uses new nodes. It
starts an attempt when all nodes are ready and healthy, and the next attempt when that attempt fails or loses a node. It
ends the run when the job has completed, or when the next attempt would fail in the same way. For the built-in trainer,
results and a checkpoint in S3 must confirm that the job has completed.
Then it terminates the nodes, at once or after the time for which they are kept for another run. Until then it renews
the lease. Its decisions are in S3, so that it may be killed and restarted at any time; only timers start again.
"""

import logging

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.s3 import Bucket, ObjectChangedError
from trainyard.clock import Clock
from trainyard.log import set_run
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.manifest import Manifest
from trainyard.models.run import Outcome, RunRecord
from trainyard.node.controller.account import Account
from trainyard.node.controller.node_reports import AgentConnections
from trainyard.node.controller.run_controller import RunController
from trainyard.node.identity import Node

LOG = logging.getLogger("controller")


class Controller:
    """Reads the record of the current run and controls that run; between runs it waits."""

    def __init__(self, node: Node, manifest: Manifest, connections: AgentConnections) -> None:
        self._node, self._connections = node, connections
        self._staging = Bucket(manifest.staging_bucket, node.region, node.account)
        self._data = Bucket(manifest.data_bucket, node.region)
        self._current: RunController | None = None
        self._is_active = False  # the current run had no outcome at the last successful step
        self._ended_run: str | None = None

    def step(self) -> None:
        """Advance the current run, if any. If S3 does not respond, an active run continues with what is known."""
        run = self._read_run()
        if run is None or run.run == self._ended_run:
            return
        try:
            self._control(run, self._open_run(run))
        except ObjectChangedError as error:  # by the controller of another head, which may have ended meanwhile
            LOG.warning("%s: the state of the run is read again", error)
            self._current = None

    def _control(self, run: RunRecord, current: RunController) -> None:
        """Advance a run without outcome; end a run with one, or keep its nodes for another run."""
        outcome = self._read_outcome(run.run)
        if outcome is None:
            outcome = current.step()
            if outcome is None or not current.write_outcome(outcome):
                return  # the next step reads an outcome that was recorded meanwhile
        if outcome.keeps_nodes(now := current.state.clock.time()):
            current.keep_nodes(outcome, now)
        # Until its reservations are cancelled, which are billed, the run is ended again in the next steps.
        elif current.end_run(outcome):
            self._ended_run, self._current = run.run, None

    def _read_run(self) -> RunRecord | None:
        """Return the current run; the known one if it is active and S3 does not respond."""
        try:
            content = self._staging.find(CURRENT_RUN)
        except (BotoCoreError, ClientError) as error:
            if self._current is None or not self._is_active:
                raise
            LOG.warning("the record of the run cannot be read: %s", error)
            return self._current.state.run
        return None if content is None else RunRecord.model_validate_json(content)

    def _read_outcome(self, run: str) -> Outcome | None:
        """Return the outcome of the run; none if it was active and S3 does not respond.

        The launch, `trainyard stop`, or a previous controller that was killed may have written it.
        """
        try:
            content = self._data.find(RunLayout(run).outcome)
        except (BotoCoreError, ClientError) as error:
            if not self._is_active:
                raise
            LOG.warning("the outcome of the run cannot be read: %s", error)
            return None
        self._is_active = content is None
        return None if content is None else Outcome.model_validate_json(content)

    def _open_run(self, run: RunRecord) -> RunController:
        """Return the controller of the current run, whose record may have changed."""
        if self._current is None or self._current.state.run.run != run.run:
            self._is_active = False
            # An update may have changed the manifest since this process has started.
            manifest = Manifest.model_validate_json(self._staging.read(MANIFEST))
            account = Account(self._node.region)
            self._current = RunController(self._node, manifest, run, account, self._connections, Clock())
            set_run(run.run)
            LOG.info("controls a run of %d nodes x %d processes", run.nodes, run.processes_per_node)
        self._current.state.run = run  # the launch may have added nodes to it, or removed them again
        return self._current
