"""Metrics in MLflow. Tested with mlflow-skinny 3.17."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.telemetry.loggers.logger import LoggedRun, Point, import_library
from trainyard.config.training.loggers import MlflowConfig

_RUN_TAG = "trainyard.run"
_PARAMETERS_PER_REQUEST = 100  # limit of MLflow
_PARAMETER_CHARACTERS = 500  # limit of servers before 2.8
_EXIT_TERMINATED = 128 + 15


class MlflowLogger:
    """A run in MLflow. All attempts of a run continue the run with its id in a tag."""

    service = "MLflow"
    advice = (
        "Correct loggers.mlflow.tracking_uri, set MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and"
        " MLFLOW_TRACKING_PASSWORD (on a cluster by job.secrets), and allow the node to connect to the server"
    )

    def __init__(self, config: MlflowConfig, run: LoggedRun) -> None:
        self._config, self._run = config, run
        self._client: Any = None
        self._id = ""

    def open(self) -> None:
        """Create the experiment and the run, or continue it."""
        self._client = import_library("mlflow").MlflowClient(tracking_uri=self._config.tracking_uri)
        run = self._find_or_create_run(self._find_or_create_experiment())
        self._id = run.info.run_id
        if not run.data.params:  # they cannot change
            self._log_parameters()

    def log(self, points: Sequence[Point]) -> None:
        """Log steps in one request. Steps that are repeated after a failure have two values."""
        metric = import_library("mlflow.entities").Metric
        metrics = [
            metric(name, value, round(point.time * 1000), point.step)
            for point in points
            for name, value in point.figures.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def publish(self) -> None:
        """Upload nothing: there are no files."""

    def close(self, exit_code: int) -> None:
        """Set the status of the run."""
        status = {0: "FINISHED", _EXIT_TERMINATED: "KILLED"}.get(exit_code, "FAILED")
        self._client.set_terminated(self._id, status=status)

    def _find_or_create_experiment(self) -> str:
        """Return the id of the experiment."""
        name = self._config.experiment
        existing = self._client.get_experiment_by_name(name)
        return str(existing.experiment_id if existing else self._client.create_experiment(name))

    def _find_or_create_run(self, experiment: str) -> Any:
        tag = f"tags.`{_RUN_TAG}` = '{self._run.id}'"
        for run in self._client.search_runs([experiment], filter_string=tag, max_results=1):
            self._client.update_run(run.info.run_id, status="RUNNING")
            return run
        name = self._config.name or self._run.id
        return self._client.create_run(experiment, run_name=name, tags={_RUN_TAG: self._run.id})

    def _log_parameters(self) -> None:
        parameter = import_library("mlflow.entities").Param
        values = [parameter(key, value[:_PARAMETER_CHARACTERS]) for key, value in flatten(self._run.settings)]
        for start in range(0, len(values), _PARAMETERS_PER_REQUEST):
            self._client.log_batch(self._id, params=values[start : start + _PARAMETERS_PER_REQUEST])


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested settings with dots, as `optimizer.beta1`, and their values as text."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)
