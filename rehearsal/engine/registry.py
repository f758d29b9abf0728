"""The available engines by name."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from rehearsal.context import Context
from rehearsal.engine.base import Engine
from rehearsal.engine.cli import check_cli, cli_engine
from rehearsal.engine.mocks import mocks_engine
from rehearsal.engine.plugin import check_plugin, plugin_engine
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.models.report import EngineName

ENGINES: dict[EngineName, Callable[[Context], AbstractContextManager[Engine]]] = {
    "mocks": mocks_engine,
    "pulumi": cli_engine,
    "pulumi-aws": plugin_engine,
}
_CHECKS: dict[EngineName, Callable[[], None]] = {
    "mocks": lambda: None,
    "pulumi": check_cli,
    "pulumi-aws": check_plugin,
}


def select_engine(value: str) -> EngineName:
    """Return the engine that `--engine` names. Raises InputError when it is unknown or not installed."""
    for name in ENGINES:
        if value == name:
            _CHECKS[name]()
            return name
    fix = f"{did_you_mean(value, ENGINES)}Use one of {', '.join(ENGINES)}"
    raise InputError([Problem("--engine", value, "no such engine", fix, "unknown_engine")])
