"""Python's garbage collector between training steps, at the same steps on all ranks.

A collection that a rank starts within a step delays all other ranks, and it visits every object of the imported
libraries.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS_PER_COLLECTION = 50  # of young objects; the others have survived the setup
STEPS_PER_FULL_COLLECTION = 1000


@contextmanager
def collect_by_step() -> Iterator[Callable[[int], None]]:
    """Disable automatic collections in this context, and exempt the objects that exist now.

    Yields a function that is called with the number of each completed step, and collects garbage at some of them.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield _collect
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _collect(step: int) -> None:
    if step % STEPS_PER_FULL_COLLECTION == 0:
        gc.collect()
    elif step % STEPS_PER_COLLECTION == 0:
        gc.collect(1)
