"""Agreement of the ranks of a job on their generation, and on the rank whose state the others take.

A generation is a number in a store that outlives the ranks: the supervisor of the first node serves it. It
starts at 0, and each replaced rank increases it by one. The process groups of a generation consist of all ranks of the
job, so the layout, the order of samples and the order of sums never change.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from trainyard.models.failure_messages import PEER_LOST

NO_STATE = -1  # the step of a rank that has neither started nor resumed
MAX_RECOVERIES_PER_STEP = 2
_GENERATION, _ABANDONED = "generation", "abandoned"
_POLL_SECONDS = 0.02
_REMEMBERED_GENERATIONS = 16  # some have never started, because another rank was lost meanwhile


class RecoveryError(Exception):
    """The ranks can't recover in process: the attempt fails. The message is for the operator."""


@dataclass(frozen=True)
class Agreement:
    """What all ranks of a generation have agreed on. `source`: a rank with the newest state; None if none has one.

    `step`: the last step that the source has completed, or NO_STATE.
    """

    generation: int
    source: int | None
    step: int


def newest_generation(store: Store) -> int:
    """Return the number of the newest generation."""
    return store.add(_GENERATION, 0)


def start_generation(store: Store) -> int:
    """Start a generation, because a rank is replaced. Returns its number."""
    return store.add(_GENERATION, 1)


def abandon(store: Store) -> None:
    """Record that the attempt fails on this node, so that no other node replaces a rank."""
    store.set(_ABANDONED, "1")


def is_abandoned(store: Store) -> bool:
    """Return whether the attempt has failed on any node."""
    return store.check([_ABANDONED])


def join(
    store: Store,
    *,
    rank: int,
    world_size: int,
    step: int,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Agreement:
    """Join the newest generation and wait for all other ranks, also if a newer generation starts meanwhile.

    `step`: the last step that this rank has completed, or NO_STATE. Ranks may differ by one step, because the optimizer
    changes weights after the last collective operation of a step: some ranks may have completed it and others not. The
    newest state is complete and the same as without a failure. Raises RecoveryError after `timeout_seconds`, if the
    attempt has failed on another node, and if MAX_RECOVERIES_PER_STEP recoveries have not completed a step.
    """
    deadline, joined = clock() + timeout_seconds, -1
    while True:
        generation = newest_generation(store)
        names = [f"{generation}/step/{member}" for member in range(world_size)]
        if generation != joined:
            store.set(names[rank], str(step))
            joined = generation
        if store.check(names):
            steps = [int(value) for value in store.multi_get(names)]
            _require_progress(store, generation, max(steps))
            source = None if max(steps) == NO_STATE else steps.index(max(steps))
            return Agreement(generation, source, max(steps))
        if is_abandoned(store):
            raise RecoveryError(f"{PEER_LOST}, and the attempt has failed on another node")
        if clock() > deadline:
            missing = [member for member, name in enumerate(names) if not store.check([name])]
            raise RecoveryError(
                f"{PEER_LOST}: rank {', '.join(map(str, missing))} did not join generation {generation} of the job"
                f" within {timeout_seconds:.0f} s"
            )
        time.sleep(_POLL_SECONDS)


def _require_progress(store: Store, generation: int, step: int) -> None:
    """Record the step that the generation starts from. Raises RecoveryError after too many recoveries at this step."""
    store.set(f"{generation}/start", str(step))
    earlier = [f"{number}/start" for number in range(max(0, generation - _REMEMBERED_GENERATIONS), generation)]
    starts = sum(store.check([name]) and int(store.get(name)) == step for name in earlier)
    recoveries = starts - 1 if step == NO_STATE else starts  # the first start is none
    if recoveries >= MAX_RECOVERIES_PER_STEP:
        raise RecoveryError(f"{PEER_LOST}: {recoveries} recoveries have not completed step {max(step, 0) + 1}")


def wait_for_newer(store: Store, generation: int, timeout_seconds: float) -> bool:
    """Return whether a generation newer than `generation` exists or starts within `timeout_seconds`."""
    timeout = time.monotonic() + timeout_seconds
    while newest_generation(store) == generation:
        if time.monotonic() > timeout:
            return False
        time.sleep(_POLL_SECONDS)
    return True
