"""Membership of this process in the generations of its job."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from trainer.failures.peer_loss import PeerLostError
from trainer.recovery.agreement import Agreement, join, newest_generation, wait_for_newer
from trainer.recovery.connections import Connection, abort_nccl, open_connections, shut_down
from trainer.settings import Environment

SUPERVISED = "TRAINER_SUPERVISED"  # environment variable that the supervisor sets for its ranks
JOIN_SECONDS = 120.0  # from the loss of a rank until all ranks have joined: the new rank builds the model meanwhile
_STORE_SECONDS = 30.0  # limit of an operation of the store
_NOTICE_SECONDS = 5.0  # from a broken connection until the supervisor has recorded the loss of the peer
_WATCH_SECONDS = 0.1
_log = logging.getLogger(__name__)


@dataclass
class Generation:
    """One generation of the job's ranks: the store of its process groups, and the source of its state."""

    agreement: Agreement
    store: Store
    _other_connections: set[Connection]
    _connections: set[Connection] | None = field(default=None)

    def record_groups(self) -> None:
        """Record that all process groups exist: connections that are opened later are not theirs."""
        self._connections = open_connections() - self._other_connections

    def abort(self) -> None:
        """Abort all collective operations of this process, and the creation of a process group."""
        opened = open_connections() - self._other_connections if self._connections is None else self._connections
        shut_down(opened)
        abort_nccl()


class Members:
    """The ranks of a job under the supervisors of its nodes."""

    def __init__(self, environment: Environment, host: str, port: int) -> None:
        """`host`, `port`: the store of the supervisors."""
        self._rank, self._world_size = environment.rank, environment.world_size
        self._host, self._port = host, port
        self._store = self._connect()
        self._generation = -1

    @classmethod
    def of_process(cls, environment: Environment) -> "Members | None":
        """Return the members of this process's job; None without a supervisor."""
        if SUPERVISED not in os.environ:
            return None
        return cls(environment, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

    @contextmanager
    def join_generation(self, step: int, setup_seconds: float) -> Iterator[Generation]:
        """Join the newest generation with the last completed step, and abort it when a newer generation starts.

        Raises RecoveryError if not all ranks join within JOIN_SECONDS, or the first generation within `setup_seconds`.
        """
        timeout_seconds = JOIN_SECONDS if newest_generation(self._store) else setup_seconds
        agreement = join(
            self._store, rank=self._rank, world_size=self._world_size, step=step, timeout_seconds=timeout_seconds
        )
        self._generation = agreement.generation
        watching = self._connect()
        others = open_connections()
        store = PrefixStore(f"group/{agreement.generation}", self._connect())
        generation = Generation(agreement, store, others)
        closed = threading.Event()
        thread = threading.Thread(target=self._watch, args=(watching, generation.abort, closed), daemon=True)
        thread.start()
        try:
            yield generation
        finally:
            closed.set()
            thread.join()

    def is_peer_loss(self, error: Exception) -> bool:
        """Return whether the error results from the loss of a rank that is being replaced."""
        if not isinstance(error, PeerLostError | RuntimeError | OSError):
            return False
        try:
            return wait_for_newer(self._store, self._generation, _NOTICE_SECONDS)
        except RuntimeError:  # the store is lost
            return False

    def _connect(self) -> Store:
        timeout = timedelta(seconds=_STORE_SECONDS)
        return TCPStore(self._host, self._port, is_master=False, wait_for_workers=False, timeout=timeout)

    def _watch(self, store: Store, abort: Callable[[], None], closed: threading.Event) -> None:
        """Abort this generation, repeatedly, when a newer generation starts: its groups may still open connections."""
        superseded = False
        while not closed.wait(_WATCH_SECONDS):
            try:
                superseded = superseded or newest_generation(store) > self._generation
            except RuntimeError:
                _log.warning("the job's store does not respond: a lost rank is not noticed")
                return
            if superseded:
                abort()
