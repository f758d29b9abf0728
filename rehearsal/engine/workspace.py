"""A folder from which the Pulumi CLI runs the program: project, settings, state and logs, none of them the user's."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rehearsal.adapter.graph import Event
from rehearsal.engine.log import EngineLog

_LOOK_SECONDS = 0.1
_END_SECONDS = 120.0


class Workspace:
    """Of one stack of the tree `root`. `attached`: package -> port of the provider that takes its plugin's place."""

    def __init__(self, folder: Path, root: Path, stack: str, attached: Mapping[str, int]) -> None:
        self.folder = folder
        self._root = root
        self._stack = stack
        self._attached = attached
        self._running: subprocess.Popen[bytes] | None = None

    def lay_out(self, config: Mapping[str, Any]) -> None:
        """The tree's project with these settings, and a state that begins empty."""
        (self.folder / "state").mkdir(parents=True)
        project: dict[str, Any] = yaml.safe_load((self._root / "Pulumi.yaml").read_text())
        project.pop("stackConfigDir", None)
        project["main"] = str(self._root / project["main"])
        project["runtime"]["options"]["virtualenv"] = sys.prefix
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        self._asked("stack", "init", "--no-select", self._stack)
        self.configure(config)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Other settings, for the next `up`. What the engine itself keeps beside them stays."""
        file = self.folder / f"Pulumi.{self._stack}.yaml"
        kept = yaml.safe_load(file.read_text()) if file.exists() else {}
        file.write_text(yaml.safe_dump({**kept, "config": dict(config)}))

    def state(self) -> dict[str, Any]:
        """As `pulumi stack export` tells it."""
        found: dict[str, Any] = json.loads(self._asked("stack", "export", "--stack", self._stack))
        return found

    def run(self, verb: str, *words: str, tell: Callable[[Event], None] = lambda event: None) -> EngineLog:
        """Run the engine to its end. A KeyboardInterrupt lets it end what it had begun.

        Whatever went wrong stands in the log's errors: there is one when its status is not 0.
        """
        events, told = self.folder / f"{verb}.jsonl", self.folder / f"{verb}.log"
        events.unlink(missing_ok=True)
        log = EngineLog(events)
        command = ["pulumi", verb, *words, "--stack", self._stack, "--cwd", str(self.folder)]
        with told.open("wb") as output:
            # A session of its own: Ctrl-C is the rehearsal's, which tells it when to stop.
            process = subprocess.Popen(
                [*command, "--non-interactive", "--color", "never", "--event-log", str(events)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._running = process
        try:
            while not _ended(process, _LOOK_SECONDS):
                for event in log.events():
                    tell(event)
        except KeyboardInterrupt:
            self._end(process)
            raise
        finally:
            self._running = None
        for event in log.events():
            tell(event)
        if process.returncode and not log.errors:
            tail = told.read_text(errors="replace").strip()[-2000:]
            log.errors.append(("", f"pulumi {verb} ended with status {process.returncode}: {tail}"))
        return log

    def interrupt(self) -> None:
        """As Ctrl-C does, from any thread: what the engine has begun ends, commands at once."""
        if (running := self._running) is not None:
            running.send_signal(signal.SIGINT)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGINT)
        if not _ended(process, _END_SECONDS):
            process.kill()
            process.wait()
            self._asked("cancel", "--yes", self._stack)  # its lock on the state outlives it

    def _environment(self) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("PULUMI_") or key == "PULUMI_HOME"}
        return own | {
            "PULUMI_BACKEND_URL": (self.folder / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "rehearsal",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DEBUG_COMMANDS": "true",  # shows --event-log
            "PULUMI_DEBUG_PROVIDERS": ",".join(f"{name}:{port}" for name, port in self._attached.items()),
        }

    def _asked(self, *words: str) -> str:
        """Its answer. Raises RuntimeError with its message when it fails."""
        done = subprocess.run(
            ["pulumi", *words, "--cwd", str(self.folder), "--non-interactive"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"pulumi {words[0]} failed: {done.stderr.strip()}")
        return done.stdout


def _ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
