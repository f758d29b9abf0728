"""Validators across the fields of the stack settings. Each yields problems; all are reported together."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trainyard.config.settings import StackSettings
from trainyard.config.validators import cost, data, hardware, job, network, node, secrets, source, storage, unused
from trainyard.errors import Problem

Validator = Callable[[StackSettings, Path], Iterator[Problem]]

JOB_VALIDATORS: tuple[Validator, ...] = (*job.VALIDATORS, *secrets.VALIDATORS)
VALIDATORS: tuple[Validator, ...] = (
    *hardware.VALIDATORS,
    *network.VALIDATORS,
    *node.VALIDATORS,
    *storage.VALIDATORS,
    *cost.VALIDATORS,
    *JOB_VALIDATORS,
    *source.VALIDATORS,
    *data.VALIDATORS,
    *unused.VALIDATORS,
)


def validate(settings: StackSettings, root: Path, validators: tuple[Validator, ...] | None = None) -> list[Problem]:
    """Every problem that the validators report (None: all). `root` is the folder of Pulumi.yaml.

    The name of a validator is the default code of its problems.
    """
    return [
        replace(problem, code=problem.code or validator.__name__)
        for validator in (VALIDATORS if validators is None else validators)
        for problem in validator(settings, root)
    ]
