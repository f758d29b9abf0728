"""Metrics in Weights & Biases. Tested with wandb 0.31."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.storage import Storage
from trainer.telemetry.loggers.logger import LoggedRun, Point, import_library
from trainyard.config.training.loggers import WandbConfig

# Less than that of the thread: the process waits for both when it exits.
_INIT_TIMEOUT_SECONDS = 20.0
_FINISH_TIMEOUT_SECONDS = 20.0


class WandbLogger:
    """A run in Weights & Biases. All attempts of a run have its id, and continue it."""

    service = "Weights & Biases"
    advice = (
        "Set WANDB_API_KEY (on a cluster by job.secrets) and allow the node to connect to the server, or set"
        " loggers.wandb.mode to offline"
    )

    def __init__(self, config: WandbConfig, run: LoggedRun, folder: Path, results: Storage) -> None:
        self._config, self._logged, self._folder, self._results = config, run, folder, results
        self._run: Any = None
        self._next_step = 0
        self._is_repeated = False

    def open(self) -> None:
        """Start the run, or continue it."""
        wandb = import_library("wandb")
        if self._is_repeated:  # the library's process would regard the id of the run as in use
            with suppress(Exception):
                wandb.teardown()
        self._is_repeated = True
        # Without a key, init would request one on a terminal.
        if self._config.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise PermissionError("no API key is set")
        self._run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            name=self._config.name or self._logged.id,
            id=self._logged.id,
            resume="allow",
            mode=self._config.mode,
            dir=str(self._folder),
            config=dict(self._logged.settings),
            allow_val_change=True,  # such as the number of ranks of a later attempt
            reinit="create_new",
            settings=wandb.Settings(
                console="off",  # the log may contain more than metrics
                silent=True,
                disable_git=True,
                save_code=False,
                init_timeout=_INIT_TIMEOUT_SECONDS,
                finish_timeout=_FINISH_TIMEOUT_SECONDS,
            ),
        )
        self._next_step = self._run.step

    def log(self, points: Sequence[Point]) -> None:
        """Log steps. Those that an earlier attempt has logged are omitted: W&B's steps only increase."""
        for point in points:
            if point.step >= self._next_step:
                self._run.log(dict(point.figures), step=point.step, commit=True)

    def publish(self) -> None:
        """Upload the files of offline runs to results/wandb/, without the log files of the library."""
        if self._config.mode == "offline":
            for file in sorted(self._folder.glob("wandb/offline-run-*/**/*")):
                key = file.relative_to(self._folder)
                if file.is_file() and key.parts[2] != "logs":
                    self._results.upload(file, str(key), threads=False)

    def close(self, exit_code: int) -> None:
        """End this attempt of the run."""
        self._run.finish(exit_code=exit_code)
        self.publish()
