"""Metrics in Weights & Biases and MLflow.

The libraries are not in the environment of the tests: fakes of the two modules replace them (fakes.py).
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.problems import rejects
from tests.trainer.conftest import tiny
from tests.trainer.telemetry.loggers.fakes import MlflowServer, Wandb, install_mlflow, install_wandb
from tests.trainer.telemetry.test_metrics import record_steps
from trainer.loop import train
from trainer.settings import Environment
from trainer.telemetry.loggers.logger import LoggedRun, Point
from trainer.telemetry.loggers.mlflow_runs import MlflowLogger, flatten
from trainer.telemetry.metrics import Metrics
from trainyard.config.training import TrainerConfig
from trainyard.config.training.loggers import MlflowConfig

RUN = "20260131-183012-base-4f1a"
MLFLOW = {"tracking_uri": "https://mlflow.example.com", "experiment": "pretraining"}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    return install_wandb(monkeypatch)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> MlflowServer:
    return install_mlflow(monkeypatch)


@pytest.fixture
def cluster(alone: Environment) -> Environment:
    """The environment of a job of a cluster."""
    return replace(alone, run=RUN)


def with_wandb(**changes: Any) -> TrainerConfig:
    return tiny(loggers={"wandb": {"project": "p", **changes}})


def with_mlflow(**changes: Any) -> TrainerConfig:
    return tiny(loggers={"mlflow": MLFLOW | changes})


def test_wandb_gets_the_figures_of_tensorboard_with_their_steps(wandb: Wandb, cluster: Environment) -> None:
    record_steps(cluster, [2.0, 4.0], config=with_wandb(), validation_loss=4.5)
    (run,) = wandb.runs
    assert [step for step, _ in run.lines] == [1, 2]
    figures = run.lines[1][1]
    assert (figures["step_seconds"], figures["validation_loss"], figures["checkpoint_seconds"]) == (4.0, 4.5, 0.5)
    assert "mfu" not in figures  # unknown on a CPU
    assert run.exit_code == 0


def test_wandb_run_has_the_id_of_the_run_and_its_configuration(wandb: Wandb, cluster: Environment) -> None:
    record_steps(cluster, [2.0], config=with_wandb(entity="team"))
    options = wandb.runs[0].options
    assert (options["id"], options["name"], options["resume"]) == (RUN, RUN, "allow")
    assert (options["project"], options["entity"], options["mode"]) == ("p", "team", "online")
    assert options["config"]["optimizer"]["beta1"] == 0.9
    assert options["settings"].console == "off"
    record_steps(cluster, [2.0], config=with_wandb(name="mine"))
    assert (wandb.runs[1].options["id"], wandb.runs[1].options["name"]) == (RUN, "mine")


def test_wandb_omits_the_steps_of_an_earlier_attempt(wandb: Wandb, cluster: Environment) -> None:
    wandb.first_step = 3
    record_steps(cluster, [2.0] * 4, config=with_wandb())
    assert [step for step, _ in wandb.runs[0].lines] == [3, 4]


def test_offline_run_is_uploaded_to_the_results(wandb: Wandb, cluster: Environment) -> None:
    wandb.has_key = False
    record_steps(cluster, [2.0], config=with_wandb(mode="offline"))
    folder = Path(cluster.results_uri) / f"wandb/offline-run-1-{RUN}"
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "files/config.yaml",
        f"run-{RUN}.wandb",
    ]


def test_online_run_is_not_uploaded(wandb: Wandb, cluster: Environment) -> None:
    record_steps(cluster, [2.0], config=with_wandb())
    assert not (Path(cluster.results_uri) / "wandb").exists()


def test_mlflow_gets_the_figures_with_step_and_time(mlflow: MlflowServer, cluster: Environment) -> None:
    record_steps(cluster, [2.0, 4.0], config=with_mlflow())
    seconds = {step: value for name, value, _, step in mlflow.metrics if name == "step_seconds"}
    assert seconds == {1: 2.0, 2: 4.0}
    assert all(timestamp > 1.7e12 for _, _, timestamp, _ in mlflow.metrics)  # milliseconds
    assert mlflow.experiments == ["pretraining"]
    (run,) = mlflow.runs
    assert (run.info.run_name, run.info.status, run.tags) == (RUN, "FINISHED", {"trainyard.run": RUN})
    assert (run.data.params["optimizer.beta1"], run.data.params["world_size"]) == ("0.9", "1")


def test_attempts_continue_the_mlflow_run(mlflow: MlflowServer, cluster: Environment) -> None:
    record_steps(cluster, [2.0], config=with_mlflow())
    record_steps(replace(cluster, attempt=2), [2.0], config=with_mlflow(name="renamed"))
    record_steps(replace(cluster, run="20260201-090000-base-0b0c"), [2.0], config=with_mlflow(name="other"))
    assert [run.info.run_name for run in mlflow.runs] == [RUN, "other"]
    assert mlflow.experiments == ["pretraining"]


def test_mlflow_requests_are_within_its_limits(mlflow: MlflowServer) -> None:
    settings = {f"key{number}": "x" * 900 for number in range(250)}
    logger = MlflowLogger(MlflowConfig.model_validate(MLFLOW), LoggedRun(id=RUN, settings=settings))
    logger.open()
    assert mlflow.requests == 3  # the fake refuses larger requests
    assert {len(value) for value in mlflow.runs[0].data.params.values()} == {500}
    logger.log([Point(step=step, time=1.0, figures=dict.fromkeys(map(str, range(18)), 1.0)) for step in range(50)])
    assert len(mlflow.metrics) == 900


def test_nested_settings_have_keys_with_dots() -> None:
    settings = {"steps": 3, "model": {"config": {"layers": [1, 2]}, "path": None}}
    assert dict(flatten(settings)) == {"steps": "3", "model.config.layers": "[1, 2]", "model.path": "None"}


@pytest.mark.parametrize(
    ("error", "status", "exit_code"), [(KeyError("x"), "FAILED", 1), (SystemExit(143), "KILLED", 143)]
)
def test_status_is_that_of_the_job(
    wandb: Wandb, mlflow: MlflowServer, cluster: Environment, error: BaseException, status: str, exit_code: int
) -> None:
    def fail() -> None:
        with metrics(cluster, tiny(loggers={"wandb": {"project": "p"}, "mlflow": MLFLOW})):
            raise error

    with pytest.raises(type(error)):
        fail()
    assert (mlflow.runs[0].info.status, wandb.runs[0].exit_code) == (status, exit_code)


def metrics(environment: Environment, config: TrainerConfig) -> Metrics:
    recorder = record_steps(environment, [], config=tiny())
    return Metrics(config, environment, recorder._results, recorder._model, recorder._device)


def test_standalone_run_keeps_its_id_in_the_results(wandb: Wandb, alone: Environment) -> None:
    for _ in range(2):
        record_steps(alone, [2.0], config=with_wandb())
    record_steps(replace(alone, results_uri=f"{alone.results_uri}-2"), [2.0], config=with_wandb())
    first, second, other = (run.options["id"] for run in wandb.runs)
    assert first == second
    assert first.startswith("standalone-")
    assert other != first


def test_nothing_is_imported_without_loggers(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, library, None)
    record_steps(alone, [2.0])
    assert not (Path(alone.results_uri) / "logged-run-id").exists()


@pytest.mark.parametrize(
    ("config", "library", "package"), [(with_wandb(), "wandb", "wandb"), (with_mlflow(), "mlflow", "mlflow-skinny")]
)
def test_missing_library_is_an_input_error_before_the_first_step(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, config: TrainerConfig, library: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # an import raises ImportError
    with rejects("package_missing", f"config.loggers.{library}", f"package {package} "):
        train(config, alone)
    assert not (alone.metrics_dir / "metrics.jsonl").exists()


def test_folder_of_offline_runs_is_not_the_library(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    del sys.modules["wandb"]  # the test's end removes what is imported
    with rejects("package_missing", "config.loggers.wandb", "package wandb "):
        train(with_wandb(), alone)


def test_training_logs_its_steps(wandb: Wandb, cluster: Environment) -> None:
    train(with_wandb().model_copy(update={"steps": 3}), cluster)
    assert [step for step, _ in wandb.runs[0].lines] == [1, 2, 3]
