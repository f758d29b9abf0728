"""Garbage collection between steps."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from trainer.garbage_collection import STEPS_PER_COLLECTION, STEPS_PER_FULL_COLLECTION, collect_by_step


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_collections_are_disabled_and_enabled_again() -> None:
    with collect_by_step():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("step", [STEPS_PER_COLLECTION, STEPS_PER_FULL_COLLECTION])
def test_garbage_is_collected_at_some_steps(step: int) -> None:
    with collect_by_step() as collect:
        garbage = weakref.ref(Cycle())
        collect(step - 1)
        assert garbage() is not None
        collect(step)
        assert garbage() is None
