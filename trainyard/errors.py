"""User errors: one form for every message about invalid input."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One invalid value of the user's input.

    `key` is the path of the value, which is None where there is none. `reason` is why it is invalid, `fix` is the
    change to make. `code` identifies the kind of problem for programs and tests: an identifier such as
    `bucket_missing`, pydantic's error type, or the name of the validator that failed.
    """

    key: str
    value: Any
    reason: str
    fix: str
    code: str

    def __str__(self) -> str:
        subject = self.key if self.value is None else f"{self.key} = {self.value!r}"
        return f"{subject}: {self.reason}. {self.fix}."


class InputError(ValueError):
    """Invalid input. Holds every problem; the command line exits with status 2."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an InputError needs a problem"
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type["InputError"], tuple[list[Problem]]]:
        """Return how to create the error in another process."""
        return type(self), (self.problems,)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean X? `, the start of a fix, for the names most similar to `name`; empty if none is similar."""
    similar = get_close_matches(name, sorted(known), n=3)
    return f"Did you mean {' or '.join(similar)}? " if similar else ""
