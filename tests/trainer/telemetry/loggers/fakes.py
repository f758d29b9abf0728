"""Fakes of the modules wandb and mlflow: the parts of their interface that the trainer uses.

The libraries are optional and not in the environment of the tests. The signatures are those of wandb 0.31 and
mlflow-skinny 3.17, with which the loggers were run.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass
class WandbRun:
    """A run of wandb. `step`: that of the next call of log, as of a resumed run."""

    options: dict[str, Any]
    has_logged: threading.Event
    step: int = 0
    lines: list[tuple[int | None, dict[str, Any]]] = field(default_factory=list)
    exit_code: int | None = None

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert commit  # without it the last step is not sent
        self.lines.append((step, data))
        self.has_logged.set()

    def finish(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        folder = Path(self.options["dir"]) / f"wandb/offline-run-1-{self.options['id']}"
        for name in (f"run-{self.options['id']}.wandb", "files/config.yaml", "logs/debug.log"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("content")


class Wandb(ModuleType):
    """The module wandb."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[WandbRun] = []
        self.has_logged = threading.Event()
        self.first_step, self.has_key, self.teardowns = 0, True, 0
        self.errors: list[Exception] = []  # of the next calls of init

    def login(self, *, prompt: bool = True, verify: bool = True) -> bool:
        assert not prompt
        assert not verify
        return self.has_key

    def init(self, **options: Any) -> WandbRun:
        if self.errors:
            raise self.errors.pop(0)
        self.runs.append(WandbRun(options, self.has_logged, self.first_step))
        return self.runs[-1]

    def teardown(self) -> None:
        self.teardowns += 1

    def Settings(self, **options: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**options)


@dataclass
class MlflowServer:
    """Experiments and runs of a tracking server, as the client of mlflow returns them."""

    experiments: list[str] = field(default_factory=list)
    runs: list[SimpleNamespace] = field(default_factory=list)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    requests: int = 0


class MlflowClient:
    """mlflow.MlflowClient."""

    def __init__(self, server: MlflowServer, tracking_uri: str) -> None:
        self._server = server

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if name in self._server.experiments else None

    def create_experiment(self, name: str) -> str:
        self._server.experiments.append(name)
        return name

    def search_runs(self, experiment_ids: list[str], filter_string: str, max_results: int) -> list[SimpleNamespace]:
        return [
            run for run in self._server.runs if f"tags.`trainyard.run` = '{run.tags['trainyard.run']}'" == filter_string
        ]

    def create_run(self, experiment_id: str, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        info = SimpleNamespace(run_id=f"id-{len(self._server.runs)}", run_name=run_name, status="RUNNING")
        self._server.runs.append(SimpleNamespace(info=info, tags=tags, data=SimpleNamespace(params={})))
        return self._server.runs[-1]

    def update_run(self, run_id: str, status: str) -> None:
        self._find(run_id).info.status = status

    def set_terminated(self, run_id: str, status: str) -> None:
        self._find(run_id).info.status = status

    def log_batch(self, run_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
        assert len(params) <= 100
        assert len(metrics) <= 1000
        self._server.requests += 1
        self._find(run_id).data.params.update(params)
        self._server.metrics.extend(metrics)

    def _find(self, run_id: str) -> SimpleNamespace:
        return next(run for run in self._server.runs if run.info.run_id == run_id)


def install_wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    """Install the fake module wandb."""
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def install_mlflow(monkeypatch: pytest.MonkeyPatch) -> MlflowServer:
    """Install the fake modules mlflow and mlflow.entities."""
    server = MlflowServer()
    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    mlflow.MlflowClient = lambda tracking_uri: MlflowClient(server, tracking_uri)  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: (key, value, timestamp, step)  # type: ignore[attr-defined]
    entities.Param = lambda key, value: (key, value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return server
