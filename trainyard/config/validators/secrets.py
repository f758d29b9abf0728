"""Validators of secrets: settings have none, because the manifest has them as plain text, and every node reads it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainyard.config.secret_patterns import find_credential, is_secret_variable
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem

_PLAIN_TEXT = "and the manifest and each run.json have this setting as plain text"


def secrets_not_in_environment(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """No variable of `job.environment` is a secret. Variables of the AWS SDKs are reserved (variables_not_reserved)."""
    for name, value in sorted(settings.job.environment.items()):
        if not name.startswith("AWS_") and (reason := _secret_reason(name, value)):
            fix = f"Store the value as an SSM parameter, and set job.secrets.{name} to the name of the parameter"
            if find_credential(value) is None:
                fix += ". If it is not secret, rename the variable"
            yield invalid_setting(f"job.environment.{name}", None, reason, fix)


def secrets_not_in_command(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """No argument of `job.command` and `job.dry_run` is a secret, such as `--token=...` or `--token ...`."""
    for key, arguments in (("command", settings.job.command), ("dry_run", settings.job.dry_run)):
        for number, reason in _secret_arguments(arguments or ()):
            fix = "Remove it, add the variable to job.secrets, and read the variable in the script"
            yield invalid_setting(f"job.{key}.{number}", None, reason, fix)


def secrets_not_in_node_variables(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """No variable of the Ansible roles is a secret."""
    for name, value in sorted(settings.node.variables.items()):
        if reason := _nested_reason(name, value):
            fix = "Remove it: use job.secrets in the job, or an image of the nodes that has the secret"
            yield invalid_setting(f"node.variables.{name}", None, reason, fix)


def _secret_reason(name: str, value: str) -> str | None:
    """Return why a variable is refused; None if it is not a secret."""
    if kind := find_credential(value):
        return f"the value contains {kind}, {_PLAIN_TEXT}"
    if is_secret_variable(name, value):
        return f"the name is that of a secret, {_PLAIN_TEXT}"
    return None


def _secret_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each argument that is a secret, and the reason."""
    for number, (previous, argument) in enumerate(pairwise(("", *arguments))):
        option, separator, value = argument.partition("=")
        name = option if separator else previous if previous.startswith("--") and "=" not in previous else ""
        value = value if separator else "" if argument.startswith("-") else argument
        if kind := find_credential(argument):
            yield number, f"the argument contains {kind}, {_PLAIN_TEXT}"
        elif is_secret_variable(name.lstrip("-"), value):
            yield number, f"the name {name} is that of a secret, {_PLAIN_TEXT}"


def _nested_reason(name: str, value: Any) -> str | None:
    """Return why a value of JSON is refused: itself, or the first secret in it."""
    if isinstance(value, dict):
        return next(filter(None, (_nested_reason(str(key), each) for key, each in value.items())), None)
    if isinstance(value, list):
        return next(filter(None, (_nested_reason(name, each) for each in value)), None)
    return _secret_reason(name, value) if isinstance(value, str) else None


VALIDATORS = (secrets_not_in_environment, secrets_not_in_command, secrets_not_in_node_variables)
