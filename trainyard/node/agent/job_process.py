"""Runs a job's torchrun in a separate systemd unit: `python -I job_process.py FOLDER`.

FOLDER/start.json has the command, its folder and all its environment variables. They contain secrets, so this program
deletes the file at once. When the command has ended, its exit code is in FOLDER/exit-code: an agent that was restarted
meanwhile finds it there. SIGTERM is passed on to the command. It imports only the standard library.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

START_FILE, EXIT_FILE, LOG = "start.json", "exit-code", "torchrun.log"
EXIT_NOT_STARTED = 127  # that of a shell for a command that it does not find


def write_start_file(folder: Path, command: list[str], work_folder: Path, variables: dict[str, str]) -> None:
    """Write the file with what this program executes, readable by its owner only."""
    content = {"command": command, "folder": str(work_folder), "variables": variables}
    with os.fdopen(os.open(folder / START_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)


def read_exit_code(folder: Path) -> int | None:
    """Exit code of the command, negative for a signal; None if it runs, or if this program was killed."""
    file = folder / EXIT_FILE
    return int(file.read_text()) if file.exists() else None


def run(command: list[str], folder: str, variables: dict[str, str], log: Path) -> int:
    """Run the command until it has ended; its exit code."""
    is_stopped, process = False, None

    def stop(*_: Any) -> None:
        nonlocal is_stopped
        is_stopped = True
        if process is not None:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            output.write(f"{error}\n".encode())
            return EXIT_NOT_STARTED
    if is_stopped:  # it may have been stopped before there was a process
        process.terminate()
    return process.wait()


def main() -> None:
    """Run the command of the folder in the first argument."""
    folder = Path(sys.argv[1])
    start = json.loads((folder / START_FILE).read_text())
    (folder / START_FILE).unlink()
    code = run(start["command"], start["folder"], start["variables"], folder / LOG)
    temporary = folder / f"{EXIT_FILE}.new"
    temporary.write_text(str(code))
    temporary.rename(folder / EXIT_FILE)


if __name__ == "__main__":
    main()
