"""Signal handling: where the first signal raises KeyboardInterrupt, and where the second signal exits."""

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from rehearsal.interrupts import SAME_SIGNAL_SECONDS, Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Installed signal handlers; the original handlers are restored afterwards."""
    original = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook
    handling = Interrupts()
    handling.require_cleanup("exit")
    yield handling
    for number, handler in original.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_raises_in_a_raising_block(interrupts: Interrupts, number: int) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.raising_interrupts():
        os.kill(os.getpid(), number)
    assert interrupts.received


def test_caught_signal_does_not_interrupt_and_the_next_one_does(interrupts: Interrupts) -> None:
    with interrupts.catching_signals() as has_signal:
        assert not has_signal()
        os.kill(os.getpid(), signal.SIGTERM)
        assert has_signal()
    assert not interrupts.received
    with pytest.raises(KeyboardInterrupt), interrupts.raising_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.received


def test_first_signal_elsewhere_raises_once_at_the_next_raising_block(interrupts: Interrupts) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.received
    with pytest.raises(KeyboardInterrupt), interrupts.raising_interrupts():
        pytest.fail("the block was entered")
    with interrupts.raising_interrupts():
        pass


def test_interrupt_that_python_ignores_is_raised_again(interrupts: Interrupts) -> None:
    """Python ignores exceptions in the callback of a weak reference."""

    class Referenced:
        pass

    def delete_object() -> None:
        target = Referenced()
        _reference = weakref.ref(target, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del target
        time.sleep(10)  # the signal interrupts it
        pytest.fail("the interrupt was lost")

    with pytest.raises(KeyboardInterrupt), interrupts.raising_interrupts():
        delete_object()


def test_signal_to_process_and_group_counts_once(interrupts: Interrupts) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.received


SECOND = f"""
import os, signal, time
from rehearsal.interrupts import Interrupts
interrupts = Interrupts()
interrupts.require_cleanup("the exit message")
os.kill(os.getpid(), signal.SIGTERM)
try:
    time.sleep({SAME_SIGNAL_SECONDS + 0.1})
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
    ("program", "message"), [(SECOND, "the exit message"), (EARLY, "interrupted: no resources were created")]
)
def test_second_signal_or_signal_before_the_first_resource_exits_immediately(program: str, message: str) -> None:
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", f"rehearsal: {message}\n")
