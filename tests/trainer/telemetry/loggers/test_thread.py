"""The thread of a logger: no failure of a service, and no service that does not respond, ends or delays training."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.trainer.conftest import tiny
from tests.trainer.telemetry.loggers.fakes import install_wandb
from tests.trainer.telemetry.test_metrics import record_steps
from trainer.loop import train
from trainer.settings import Environment
from trainer.storage import LocalStorage
from trainer.telemetry.loggers import thread as module
from trainer.telemetry.loggers.logger import LoggedRun, Logger, Point
from trainer.telemetry.loggers.thread import LoggerThread, end_loggers
from trainer.telemetry.loggers.weights_and_biases import WandbLogger
from trainyard.config.training.loggers import WandbConfig


class Recorder:
    """A logger that calls a function before each action."""

    service, advice = "the service", "Correct the address"

    def __init__(self, before: Callable[[str], None] = lambda action: None) -> None:
        self._before = before
        self.actions: list[str] = []
        self.steps: list[int] = []
        self.has_third_step = threading.Event()

    def _act(self, action: str) -> None:
        self.actions.append(action)
        self._before(action)

    def open(self) -> None:
        self._act("open")

    def log(self, points: Sequence[Point]) -> None:
        self._act("log")
        assert len(points) <= module.BATCH
        self.steps += [point.step for point in points]
        if 3 in self.steps:
            self.has_third_step.set()

    def publish(self) -> None:
        self._act("publish")

    def close(self, exit_code: int) -> None:
        self._act(f"close {exit_code}")


def log_steps(logger: Logger, steps: int = 3, sent: threading.Event | None = None) -> None:
    """Log steps, wait for `sent`, and end the job."""
    thread = LoggerThread(logger)
    thread.start()
    for step in range(1, steps + 1):
        thread.log(Point(step=step, time=1.0, figures={"loss": 1.0}))
    assert sent is None or sent.wait(60)
    end_loggers([thread], 0)


def failing(*failures: str) -> Callable[[str], None]:
    """Return a function that raises an error in the first action of each of these names."""
    remaining = list(failures)

    def fail(action: str) -> None:
        if action in remaining:
            remaining.remove(action)
            raise ConnectionError(f"no connection\nin {action}")

    return fail


def waiting(event: threading.Event) -> Callable[[str], None]:
    """Return a function that waits for an event, as for a service that does not respond."""

    def wait(action: str) -> None:
        event.wait(60)

    return wait


def test_all_steps_are_sent_in_order() -> None:
    logger = Recorder()
    log_steps(logger, 120)
    assert logger.steps == list(range(1, 121))
    assert logger.actions[-1] == "close 0"


@pytest.mark.parametrize("failures", [("open", "open"), ("log", "log"), ("open", "log")])
def test_steps_are_sent_again_after_a_failure(
    failures: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)
    logger = Recorder(failing(*failures))
    log_steps(logger, sent=logger.has_third_step)
    assert logger.steps == [1, 2, 3]
    assert logger.actions.count("open") == 3  # with new connections
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(
        f"metrics are not sent to the service: no connection in {failures[0]}. Training continues"
    )
    assert warning.endswith("Correct the address")


def test_the_end_of_the_job_is_the_last_attempt(caplog: pytest.LogCaptureFixture) -> None:
    logger = Recorder(failing(*["open"] * 9))
    log_steps(logger)
    assert set(logger.actions) == {"open"}
    assert len(logger.actions) <= 2
    assert "3 steps were not sent to the service" in caplog.text


def test_exit_does_not_wait_for_a_service_that_does_not_respond(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    response = threading.Event()
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_SECONDS", 0.1)
    log_steps(Recorder(waiting(response)))
    assert "metrics are not sent to the service: it has not responded within 0 s" in caplog.text
    response.set()


def test_the_oldest_steps_are_discarded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_POINTS", 2)
    monkeypatch.setattr(module, "RETRY_SECONDS", 60)
    opened = threading.Event()
    logger = Recorder(waiting(opened))
    thread = LoggerThread(logger)
    thread.start()
    for step in range(1, 5):
        thread.log(Point(step=step, time=1.0, figures={}))
    opened.set()
    end_loggers([thread], 0)
    assert logger.steps == [3, 4]


def test_files_are_published_with_checkpoints() -> None:
    logger, published = Recorder(), threading.Event()
    logger._before = lambda action: published.set() if action == "publish" else None
    thread = LoggerThread(logger)
    thread.start()
    thread.publish()
    assert published.wait(60)
    end_loggers([thread], 1)
    assert logger.actions == ["open", "publish", "close 1"]


def test_process_of_wandb_is_ended_before_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would regard the id of the run as in use."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)
    wandb = install_wandb(monkeypatch)
    wandb.errors = [ConnectionError("no route"), ConnectionError("no route")]
    results = LocalStorage(str(tmp_path), "RESULTS_URI")
    logger = WandbLogger(WandbConfig(project="p"), LoggedRun(id="run", settings={}), tmp_path, results)
    log_steps(logger, steps=1, sent=wandb.has_logged)
    assert [step for step, _ in wandb.runs[0].lines] == [1]
    assert wandb.teardowns == 2


def test_failure_of_a_service_does_not_stop_training(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = install_wandb(monkeypatch)
    wandb.errors = [ConnectionError("no route")] * 9
    train(tiny(steps=3, loggers={"wandb": {"project": "p"}}), alone)
    (warning,) = [record.getMessage() for record in caplog.records if "not sent to" in record.getMessage()][:1]
    assert warning.startswith("metrics are not sent to Weights & Biases: no route. Training continues")
    assert "Set WANDB_API_KEY" in warning


def test_missing_api_key_is_no_question_on_the_terminal(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_wandb(monkeypatch).has_key = False
    record_steps(alone, [2.0], config=tiny(loggers={"wandb": {"project": "p"}})).finish()
    assert "metrics are not sent to Weights & Biases: no API key is set. " in caplog.text
