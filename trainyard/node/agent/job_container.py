"""The container in which a job runs: its command line and its variables.

The program `run-in-container` of the role `container` starts it. That program and its client of Docker are root: a
variable of the job could change what they execute.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainyard.node.identity import BASE, CONTAINER_WRAPPER

# The wrapper passes a variable with this prefix to the container only, without the prefix.
VARIABLE_PREFIX = "TRAINYARD_VARIABLE_"
# Variables of the wrapper, of its client and of systemd, which the container does not inherit: an extended regular
# expression of full names.
CLIENT_VARIABLES = (
    "PATH|ENV|IFS|HOSTNAME|PWD|OLDPWD|SHLVL|SHELL|TERM|_|TMPDIR|LD_.*|GCONV_.*|DOCKER_.*|TRAINYARD_CONTAINER|"
    "PYTHONHOME|VIRTUAL_ENV|CUDA_HOME|CUDACXX|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET|WATCHDOG_.*|LISTEN_.*|MAINPID|"
    "MANAGERPID|SYSTEMD_.*|CREDENTIALS_DIRECTORY|XDG_.*"
)
# Docker reads variables from a file with one of them in each line, and refuses lines of 64 KiB.
# Source: kvfile.go of github.com/docker/cli, bufio.MaxScanTokenSize of Go
_LINE_CHARACTERS = 15_000  # at most 60,000 bytes in UTF-8


def in_container(image: str | None, command: list[str], writable: Iterable[Path]) -> list[str]:
    """Command that executes `command` in a container of the image; the same command without an image.

    `writable`: existing folders that the container may write.
    """
    if image is None:
        return command
    return [str(BASE / CONTAINER_WRAPPER), *(f"--writable={folder}" for folder in writable), image, *command]


def container_variables(image: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables with which the command of `in_container` starts, so that `command` has all of `variables`.

    The client of Docker has only those of several lines or more than 60 KB as its own variables, too. Raises ValueError
    for such a variable if its name is one of CLIENT_VARIABLES.
    """
    if image is None:
        return dict(variables)
    lines = {name: value for name, value in variables.items() if _is_line(value)}
    others = {name: value for name, value in variables.items() if name not in lines}
    for name in others:
        if re.fullmatch(CLIENT_VARIABLES, name):
            raise ValueError(
                f"job.environment or job.secrets, {name}: the value has several lines or more than {_LINE_CHARACTERS} "
                "characters, and the Docker client of the node would use it. Use another name, or a shorter value of "
                "one line"
            )
    return {f"{VARIABLE_PREFIX}{name}": value for name, value in lines.items()} | others


def _is_line(value: str) -> bool:
    return len(value) <= _LINE_CHARACTERS and not {"\n", "\r"} & set(value)
