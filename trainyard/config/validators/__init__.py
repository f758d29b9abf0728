"""Validators across the fields of the stack settings. Each yields problems; all are reported together."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trainyard.config.settings import StackSettings
from trainyard.config.validators import cost, data, hardware, job, network, node, source, storage, unused
from trainyard.errors import Problem

Validator = Callable[[StackSettings, Path], Iterator[Problem]]

VALIDATORS: tuple[Validator, ...] = (
    *hardware.VALIDATORS,
    *network.VALIDATORS,
    *node.VALIDATORS,
    *storage.VALIDATORS,
    *cost.VALIDATORS,
    *job.VALIDATORS,
    *source.VALIDATORS,
    *data.VALIDATORS,
    *unused.VALIDATORS,
)


def validate(settings: StackSettings, root: Path) -> list[Problem]:
    """Every problem that any validator reports. `root` is the folder of Pulumi.yaml. Its name is the default code."""
    return [
        replace(problem, code=problem.code or validator.__name__)
        for validator in VALIDATORS
        for problem in validator(settings, root)
    ]
