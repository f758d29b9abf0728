"""The base of every model in the contract, and the one shape in which bad input is told."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.config.validation_messages import in_words


class Contract(BaseModel):
    """A message between two rooms: unknown keys are refused, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in what a user gave: where, what it was, why it can't stand, and what to change."""

    key: str
    value: Any
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.why}. {self.fix}."


class InputError(ValueError):
    """What a user can mend. Carries every problem found; the command line ends with status 2 on it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an InputError needs a problem"
        self.problems = list(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


_BRACKETED = re.compile(r"\[\w+\]")
CONFIG_KEY = "trainyard:cluster"  # the object in a stack file under which all settings stand


def problems_of(error: ValidationError, prefix: str, source: str) -> list[Problem]:
    """Turn pydantic's errors into problems. `prefix` is the key of the whole object in `source`, a file."""
    found = []
    for item in error.errors(include_url=False):
        place: list[str | int] = place_of(item["loc"])
        value: Any = None if item["type"] == "missing" else item["input"]
        if item["type"] == "union_tag_invalid":  # all our unions are told apart by their kind
            place, value = [*place, "kind"], value["kind"]
        key = ".".join([prefix, *(str(part) for part in place)])
        words = in_words(item)
        found.append(Problem(key=key, value=value, why=words.why, fix=f"{words.fix} in {source}"))
    return found


def place_of(location: Sequence[str | int]) -> list[str | int]:
    """The keys that lead to an error, as the user wrote them: without what stands among them in brackets, pydantic's
    own [key] and the tags of our unions."""
    return [part for part in location if not (isinstance(part, str) and _BRACKETED.fullmatch(part))]
