"""Rules across the fields of a stack's settings, in one registry. Each yields problems; all are reported together."""

from collections.abc import Collection
from pathlib import Path

from trainyard.base import Problem
from trainyard.config.settings import StackSettings
from trainyard.config.validators import cost, hardware, job, network, node, storage
from trainyard.config.validators.rule import Rule

RULES: tuple[Rule, ...] = (*hardware.RULES, *network.RULES, *node.RULES, *storage.RULES, *cost.RULES, *job.RULES)


def problems_across(settings: StackSettings, root: Path, unread: Collection[str] = ()) -> list[Problem]:
    """Every problem that any rule finds. `root` is the folder of Pulumi.yaml.

    `unread`: keys whose values are not what the file says, because that could not be read; rules that look at one of
    them, or at what is below or above it, are left out.
    """
    asked = [rule for rule in RULES if not any(_touch(key, other) for key in rule.reads for other in unread)]
    return [problem for rule in asked for problem in rule.check(settings, root)]


def _touch(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
