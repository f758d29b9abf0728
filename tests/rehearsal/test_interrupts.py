"""Where the first signal is a KeyboardInterrupt, where it is only seen, and what a second one does."""

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from rehearsal.interrupts import ONE_SECONDS, Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook
    handling = Interrupts()
    handling.keep("cut")
    yield handling
    for number, handler in earlier.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_raised_where_that_is_allowed(interrupts: Interrupts, number: int) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.raised():
        os.kill(os.getpid(), number)
    assert interrupts.seen


def test_elsewhere_it_waits_for_the_next_place_that_allows_it_and_is_raised_once(interrupts: Interrupts) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.seen
    with pytest.raises(KeyboardInterrupt), interrupts.raised():
        pytest.fail("the place was entered")
    with interrupts.raised():
        pass


def test_one_that_python_ignores_is_raised_again(interrupts: Interrupts) -> None:
    """As in a weak reference's callback, where no exception goes any further."""

    class Thing:
        pass

    def clear_away() -> None:
        thing = Thing()
        _watched = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del thing
        time.sleep(10)  # it is cut short
        pytest.fail("it was lost")

    with pytest.raises(KeyboardInterrupt), interrupts.raised():
        clear_away()


def test_the_same_signal_to_process_and_group_is_one(interrupts: Interrupts) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.seen


SECOND = f"""
import os, signal, time
from rehearsal.interrupts import Interrupts
interrupts = Interrupts()
interrupts.keep("the next one sweeps up")
os.kill(os.getpid(), signal.SIGTERM)
try:
    time.sleep({ONE_SECONDS + 0.1})
    os.kill(os.getpid(), signal.SIGINT)
finally:
    print("not reached")
"""
EARLY = """
import os, signal
from rehearsal.interrupts import Interrupts
Interrupts()
os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""


@pytest.mark.parametrize(
    ("program", "words"), [(SECOND, "the next one sweeps up"), (EARLY, "interrupted: nothing was made")]
)
def test_a_second_signal_or_one_before_anything_is_made_ends_at_once(program: str, words: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"rehearsal: {words}\n")
