"""The interface of a logger, which sends the metrics of a run to a service."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

# A variable that is set remains. The libraries would report their use and errors to their authors, and print messages;
# MLflow would repeat a request for several minutes before it raises an error, and the thread repeats it too.
_VARIABLES = MappingProxyType(
    {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # seconds
    }
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The figures of a step, by name. `time`: Unix time, seconds."""

    step: int
    time: float
    figures: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run whose attempts have the same `id`. `settings`: its configuration as JSON values."""

    id: str
    settings: Mapping[str, Any]


class Logger(Protocol):
    """Sends the metrics of a run to a service. A thread calls it; after an error it calls `open` again."""

    @property
    def service(self) -> str:
        """Name of the service, for messages."""

    @property
    def advice(self) -> str:
        """Sentence about what to change if the service cannot be used."""

    def open(self) -> None:
        """Start the run in the service, or continue that of an earlier attempt."""

    def log(self, points: Sequence[Point]) -> None:
        """Send the figures of steps, in order."""

    def publish(self) -> None:
        """Upload what this logger has written to files."""

    def close(self, exit_code: int) -> None:
        """End the run, or this attempt of it. `exit_code`: that of the process."""


def import_library(name: str) -> Any:
    """Import the library of a logger. Raises ImportError, also for a folder of that name, such as W&B's own `wandb`."""
    for variable, value in _VARIABLES.items():
        os.environ.setdefault(variable, value)
    module = import_module(name)
    if hasattr(module, "__path__") and getattr(module, "__file__", None) is None:
        raise ImportError(f"{next(iter(module.__path__))} is a folder without the library")
    return module
