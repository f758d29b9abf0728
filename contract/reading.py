"""A stack's settings from what its file says: types and keys, then the rules across fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contract.base import CONFIG_KEY, InputError, Problem, problems_of
from contract.rules import problems_across
from contract.settings import StackSettings


def read_settings(raw: Any, root: Path, source: str) -> StackSettings:
    """Validate what stands under `trainyard:cluster`. `root` is Pulumi.yaml's folder, `source` names the stack file.

    Raises InputError with every problem: types and keys first, then the rules across fields.
    """
    if not isinstance(raw, Mapping):
        why = "the stack file has no such object" if raw is None else "must be an object"
        raise InputError(
            [Problem(key=CONFIG_KEY, value=raw, why=why, fix=f"Describe the cluster under it in {source}")]
        )
    try:
        settings = StackSettings.model_validate(raw)
    except ValidationError as error:
        raise InputError(problems_of(error, CONFIG_KEY, source)) from None
    problems = problems_across(settings, root)
    if problems:
        raise InputError(problems)
    return settings
