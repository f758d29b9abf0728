"""The lease of a run's nodes and the end of its capacity reservations, which the controller moves while it runs."""

from trainyard.node.controller.reservations import RunReservations
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.worker_groups import WorkerGroups

# The lease is renewed four times in its duration, so that it survives a failed call.
RENEWALS_PER_LEASE = 4
# The controller terminates kept nodes; the lease does so a little later if the controller does not run.
KEPT_LEASE_MARGIN_SECONDS = 60.0


class Lease:
    """The lease of one run. Its renewal reads nothing from S3."""

    def __init__(self, state: RunState, groups: WorkerGroups, region: str) -> None:
        self._state, self._groups = state, groups
        self.reservations = RunReservations(region)
        self._renewed_at: float | None = None  # monotonic
        self._kept_until: float | None = None  # of the last renewal for kept nodes

    def request_renewal(self) -> None:
        """Let the next call renew the lease."""
        self._renewed_at = None

    def renew_if_due(self, now: float) -> None:
        """Renew the lease of the nodes of a run that continues. `now`: Unix time, seconds."""
        if self._is_due():
            self._renew(now, self._state.run.lease_end(now))

    def renew_for_kept_nodes(self, now: float, kept_until: float) -> None:
        """Renew the lease of nodes that wait for another run until `kept_until`, Unix time in seconds."""
        if self._is_due() or kept_until != self._kept_until:
            end = min(now + self._state.run.limits.lease_minutes * 60, kept_until + KEPT_LEASE_MARGIN_SECONDS)
            self._renew(now, end)
            self._kept_until = kept_until

    def _is_due(self) -> bool:
        interval = self._state.run.limits.lease_minutes * 60 / RENEWALS_PER_LEASE
        return self._renewed_at is None or self._state.clock.monotonic() >= self._renewed_at + interval

    def _renew(self, now: float, end: float) -> None:
        """Move the end of the lease and of the run's capacity reservations, which may be larger than the run."""
        run, control = self._state.run, self._state.control
        self._groups.renew_lease(end)
        self._renewed_at = self._state.clock.monotonic()
        self.reservations.extend(run.reservations, end)
        is_complete = run.nodes == len(control.nodes) and len(self._state.members) >= run.nodes + run.spares
        if control.attempt and control.waiting_since is None and is_complete:
            self.reservations.reduce(run.reservations, now)
        else:
            self.reservations.reset_unused_timers()
