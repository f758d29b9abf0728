"""A launch that has not created its run yet, for example because it waits for capacity.

An object in the staging bucket contains its id. `trainyard stop` and a later launch cancel it: they replace the id.
"""

import secrets

from trainyard.models.layout import PENDING_LAUNCH
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError


class PendingLaunch:
    """One launch of a stack, up to the creation of its run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.id = secrets.token_hex(8)

    def register(self) -> None:
        """Write the id of this launch, which cancels an earlier pending launch of the stack."""
        assert self._cluster.staging is not None
        self._cluster.staging.write(PENDING_LAUNCH, self.id.encode())

    @property
    def is_cancelled(self) -> bool:
        """Whether `trainyard stop` or a later launch has cancelled this launch."""
        assert self._cluster.staging is not None
        return self._cluster.staging.find(PENDING_LAUNCH) != self.id.encode()

    def require_not_cancelled(self) -> None:
        """Raise LaunchError when `trainyard stop` or a later launch has cancelled this launch."""
        if self.is_cancelled:
            raise LaunchError(
                f"the launch of stack {self._cluster.stack} was cancelled by trainyard stop or by a later launch, "
                f"before it created a run. To launch again: trainyard up -s {self._cluster.stack}"
            )


def cancel_pending_launch(cluster: Cluster) -> None:
    """Cancel the stack's pending launch, if any, before it starts nodes."""
    if cluster.staging is not None and cluster.staging.find(PENDING_LAUNCH):
        cluster.staging.write(PENDING_LAUNCH, b"")
