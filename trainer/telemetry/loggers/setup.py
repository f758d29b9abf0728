"""Creates the loggers of a job."""

import secrets
from collections.abc import Iterator

from trainer.settings import Environment
from trainer.storage import Storage
from trainer.telemetry.loggers.logger import LoggedRun, Logger, import_library
from trainer.telemetry.loggers.mlflow_runs import MlflowLogger
from trainer.telemetry.loggers.thread import LoggerThread
from trainer.telemetry.loggers.weights_and_biases import WandbLogger
from trainyard.config.training import TrainerConfig
from trainyard.config.training.loggers import LoggersConfig
from trainyard.errors import InputError, Problem

_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}  # library -> package
_ID_KEY = "logged-run-id"


def require_libraries(config: LoggersConfig) -> None:
    """Raise InputError unless the libraries of all configured loggers are installed."""
    problems = []
    for library, package in _PACKAGES.items():
        if getattr(config, library) is None:
            continue
        try:
            import_library(library)
        except ImportError as error:
            reason = f"the library cannot be imported: {error}"
            fix = f"Add the package {package} to the environment of the job (docs/trainer.md, Loggers), or remove it"
            problems.append(Problem(f"config.loggers.{library}", None, reason, fix, "package_missing"))
    if problems:
        raise InputError(problems)


def open_loggers(config: TrainerConfig, environment: Environment, results: Storage) -> list[LoggerThread]:
    """Return the threads of the configured loggers, which are not started."""
    return [LoggerThread(logger) for logger in _loggers(config, environment, results)]


def _loggers(config: TrainerConfig, environment: Environment, results: Storage) -> Iterator[Logger]:
    loggers = config.loggers
    if loggers == LoggersConfig():
        return
    settings = config.model_dump(mode="json") | {"world_size": environment.world_size}
    run = LoggedRun(id=_run_id(environment, results), settings=settings)
    if loggers.wandb:
        yield WandbLogger(loggers.wandb, run, environment.metrics_dir, results)
    if loggers.mlflow:
        yield MlflowLogger(loggers.mlflow, run)


def _run_id(environment: Environment, results: Storage) -> str:
    """Return the id of the run; for a standalone job a random id, which is kept in its results."""
    if not environment.is_standalone:
        return environment.run
    saved = results.read(_ID_KEY)
    if saved is None:
        saved = f"{environment.run}-{secrets.token_hex(4)}".encode()
        results.write(_ID_KEY, saved)
    return saved.decode()
