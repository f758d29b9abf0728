"""The deadline of a run in the controller: its time limit, or the end of its Capacity Block, which may be extended.

A block with a failed payment is released (API reference, CapacityReservation, State).
"""

import logging

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.block_end import read_block
from trainyard.aws.reservations import describe_end
from trainyard.models.run import Control, RunRecord, compute_run_deadline

# An extension is bought an hour or more before the end, and the run ends 40 minutes before it: block_end.py.
POLL_SECONDS = 60.0
LOG = logging.getLogger("controller")


class RunDeadline:
    """Reads the end of a run's Capacity Blocks from AWS, so that an extension also moves the deadline of a run.

    `unusable`: why a block of the run was released; None while all are usable.
    """

    def __init__(self, region: str) -> None:
        self._region, self._read_at = region, 0.0
        self._capacity_end: float | None = None
        self.unusable: str | None = None

    def find(self, run: RunRecord, control: Control, now: float) -> float:
        """Return the deadline of the run, Unix time in seconds.

        While AWS does not report the end of the blocks, the deadline that the controller published last applies.
        """
        if run.block_reservation_ids and now - self._read_at >= POLL_SECONDS:
            self._read(run)
            self._read_at = now
        if self._capacity_end is None:
            return run.deadline if control.deadline is None else control.deadline
        return compute_run_deadline(run.start, run.limits, self._capacity_end)

    def _read(self, run: RunRecord) -> None:
        try:
            blocks = {name: read_block(self._region, name) for name in run.block_reservation_ids}
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the end of %s cannot be read: %s", ", ".join(run.block_reservation_ids), error)
            return
        ends = (block.usable_end for block in blocks.values())
        self._capacity_end = min((end for end in ends if end is not None), default=None)
        reasons = (describe_end(name, block.state) for name, block in blocks.items())
        self.unusable = next((reason for reason in reasons if reason is not None), None)
