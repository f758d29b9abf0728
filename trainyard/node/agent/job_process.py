"""Runs a job's torchrun in a separate systemd unit: `python -I job_process.py FOLDER`.

FOLDER/start.json has the command, its folder and all its environment variables. They contain secrets, so this program
deletes the file at once. When the command has ended, its exit code is in FOLDER/exit-code: an agent that was restarted
meanwhile finds it there. SIGTERM is passed on to the command. It imports only the standard library.

If FOLDER/standby.json exists instead, this program starts its command: a standby, which waits on its stdin. When
FOLDER/start.json exists, this program writes the arguments and variables of that file to the stdin of the standby.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

START_FILE, STANDBY_FILE, EXIT_FILE, LOG = "start.json", "standby.json", "exit-code", "torchrun.log"
EXIT_NOT_STARTED = 127  # that of a shell for a command that it does not find
POLL_SECONDS = 0.02


def write_start_file(
    folder: Path, command: list[str], work_folder: Path, variables: dict[str, str], name: str = START_FILE
) -> None:
    """Write the file with what this program executes, readable by its owner only. It is complete when it exists."""
    content = {"command": command, "folder": str(work_folder), "variables": variables}
    temporary = folder / f"{name}.new"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    temporary.rename(folder / name)


def read_exit_code(folder: Path) -> int | None:
    """Exit code of the command, negative for a signal; None if it runs, or if this program was killed."""
    file = folder / EXIT_FILE
    return int(file.read_text()) if file.exists() else None


def run(folder: Path) -> int:
    """Run the command of the folder until it has ended; its exit code."""
    is_stopped, process = False, None
    standby_file = folder / STANDBY_FILE
    is_standby = standby_file.exists()
    start = json.loads(standby_file.read_text()) if is_standby else _take(folder / START_FILE)

    def stop(*_: Any) -> None:
        nonlocal is_stopped
        is_stopped = True
        if process is not None:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    with (folder / LOG).open("wb") as output:
        try:
            process = subprocess.Popen(
                start["command"],
                cwd=start["folder"],
                env=os.environ | start["variables"],
                stdin=subprocess.PIPE if is_standby else None,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            output.write(f"{error}\n".encode())
            return EXIT_NOT_STARTED
    if is_stopped:  # it may have been stopped before there was a process
        process.terminate()
    if is_standby:
        _hand_over(folder, process, len(start["command"]) - 1)
    return process.wait()


def _take(file: Path) -> dict[str, Any]:
    start: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return start


def _hand_over(folder: Path, standby: "subprocess.Popen[bytes]", skipped: int) -> None:
    """Wait for the start file, and write its arguments and variables to the standby, unless that has ended.

    `skipped`: number of leading arguments of the command that the standby already has.
    """
    while not (folder / START_FILE).exists():
        if standby.poll() is not None:
            return
        time.sleep(POLL_SECONDS)
    start = _take(folder / START_FILE)
    (folder / STANDBY_FILE).unlink()
    line = json.dumps({"arguments": start["command"][skipped:], "variables": start["variables"]})
    with suppress(OSError):  # it has ended
        standby.communicate(f"{line}\n".encode())


def main() -> None:
    """Run the command of the folder in the first argument."""
    folder = Path(sys.argv[1])
    code = run(folder)
    temporary = folder / f"{EXIT_FILE}.new"
    temporary.write_text(str(code))
    temporary.rename(folder / EXIT_FILE)


if __name__ == "__main__":
    main()
