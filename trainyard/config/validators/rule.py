"""What a rule across fields is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.base import Problem
from trainyard.config.settings import StackSettings

Check = Callable[[StackSettings, Path], Iterator[Problem]]


@dataclass(frozen=True)
class Rule:
    """A named check. `reads`: keys that it looks at; where one of them could not be read, the rule is not asked."""

    check: Check
    reads: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.check.__name__
