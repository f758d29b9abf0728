"""Assertion on the problems of an InputError."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trainyard.errors import InputError


@contextmanager
def rejects(code: str, *values: str) -> Iterator[None]:
    """Require that the body raises InputError with a problem of this code, whose message contains each of `values`."""
    with pytest.raises(InputError) as caught:
        yield
    messages = [str(problem) for problem in caught.value.problems if problem.code == code]
    assert messages, f"codes are {[problem.code for problem in caught.value.problems]}"
    assert any(all(value in message for value in values) for message in messages), messages
