"""Runs a job's torchrun in a separate systemd unit: `python -I job_process.py FOLDER`.

FOLDER/start.json has the command, its folder and all its environment variables. They contain secrets, so this program
deletes the file at once. When the command has ended, its exit code is in FOLDER/exit-code: an agent that was restarted
meanwhile finds it there. SIGTERM is passed on to the command. It imports only the standard library.

If FOLDER/standby.json exists instead, this program starts its command: a standby, which waits on its stdin. When
FOLDER/start.json exists, this program writes the arguments and variables of that file to the stdin of the standby.

`python -I job_process.py --prepare FOLDER` runs the commands of FOLDER/prepare.json one after the other, as root and
without the secrets of the job. The exit code of the first that fails is in FOLDER/exit-code.
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
PREPARE_FILE, PREPARE = "prepare.json", "--prepare"
UNIT_VARIABLES = ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")  # of systemd.exec(5)
EXIT_NOT_STARTED = 127  # that of a shell for a command that it does not find
POLL_SECONDS = 0.02


def start_content(command: list[str], work_folder: Path, variables: dict[str, str]) -> bytes:
    """Content of the file with what this program executes."""
    return json.dumps({"command": command, "folder": str(work_folder), "variables": variables}).encode()


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
                env=_own_variables() | start["variables"],
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


def _own_variables() -> dict[str, str]:
    """Variables that name this unit. The others of the command are in its file."""
    return {name: os.environ[name] for name in UNIT_VARIABLES if name in os.environ}


def _take(file: Path) -> dict[str, Any]:
    start: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return start


def _hand_over(folder: Path, standby: "subprocess.Popen[bytes]", skipped: int) -> None:
    """Wait for the start file, and pass its arguments and variables to the standby.

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


def prepare(folder: Path) -> int:
    """Run the commands of the folder until one fails; its exit code, or 0."""
    content = json.loads((folder / PREPARE_FILE).read_text())
    variables = os.environ | content["variables"]
    with (folder / LOG).open("wb") as output:
        for command in content["commands"]:
            result = subprocess.run(command, env=variables, stdout=output, stderr=subprocess.STDOUT, check=False)
            if code := result.returncode:
                return code
    return 0


def _write_exit_code(folder: Path, code: int) -> None:
    temporary = folder / f"{EXIT_FILE}.new"
    temporary.write_text(str(code))
    temporary.rename(folder / EXIT_FILE)


def main() -> int:
    """Run the command, or the preparation, of the folder in the last argument; the exit code of this program."""
    folder = Path(sys.argv[-1])
    if PREPARE not in sys.argv:
        _write_exit_code(folder, run(folder))
        return 0
    if code := prepare(folder):
        _write_exit_code(folder, code)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
