"""The engines by their names."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from rehearsal.context import Scene
from rehearsal.engine.base import Engine
from rehearsal.engine.cli import check_cli, cli
from rehearsal.engine.mocks import mocks
from rehearsal.engine.plugin import check_plugin, plugin
from trainyard.base import InputError, Problem
from trainyard.models.report import EngineName

ENGINES: dict[EngineName, Callable[[Scene], AbstractContextManager[Engine]]] = {
    "mocks": mocks,
    "pulumi": cli,
    "pulumi-aws": plugin,
}
_CHECKS: dict[EngineName, Callable[[], None]] = {
    "mocks": lambda: None,
    "pulumi": check_cli,
    "pulumi-aws": check_plugin,
}


def usable_engine(given: str) -> EngineName:
    """What `--engine` asks for. Raises InputError for what is no engine, or can't be had here."""
    for name in ENGINES:
        if given == name:
            _CHECKS[name]()
            return name
    fix = f"Write one of {', '.join(ENGINES)}"
    raise InputError([Problem(key="--engine", value=given, why="no such engine", fix=fix)])
