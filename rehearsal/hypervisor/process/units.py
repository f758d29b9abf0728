"""Parses systemd service units. It supports the keys that the node's services use."""

import shlex
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

_SUPPORTED = {
    "Unit": {"Description", "After", "Wants", "StartLimitIntervalSec", "ConditionPathExists"},
    "Install": {"WantedBy"},
    "Service": {
        "Type",
        "ExecStart",
        "ExecStartPre",
        "WorkingDirectory",
        "Environment",
        "EnvironmentFile",
        "Restart",
        "RestartSec",
        "TimeoutStopSec",
        "TimeoutStartSec",
        "KillMode",
        "RemainAfterExit",
        "OOMPolicy",
        "LimitMEMLOCK",
        "LimitNOFILE",
        "TasksMax",
        "WatchdogSec",
        "StandardOutput",
        "StandardError",
    },
}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A service unit. `folder`: WorkingDirectory. `preparation`: ExecStartPre, empty without it. `watchdog_seconds`: 0
    without a watchdog.

    `can_be_enabled`: it has an [Install] section, so that `systemctl enable` lets it start at each boot.
    """

    name: str
    command: tuple[str, ...]
    preparation: tuple[str, ...]
    folder: str | None
    environment: dict[str, str]
    oneshot: bool
    remain_after_exit: bool
    restart: str
    restart_seconds: float
    stop_timeout_seconds: float
    kill_mode_mixed: bool
    watchdog_seconds: float
    can_be_enabled: bool


def parse(name: str, text: str) -> Unit:
    """Parse a unit file. Raises ValueError for an unsupported key."""
    values: dict[str, str] = {}
    environment: dict[str, str] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, _, value = line.partition("=")
        if key not in _SUPPORTED.get(section, set()):
            raise ValueError(f"{name}: {section}.{key} is not supported")
        if key == "Environment":
            for pair in shlex.split(value):
                variable, _, content = pair.partition("=")
                environment[variable] = content
        elif key == "EnvironmentFile":
            environment |= read_environment_files(value)
        else:
            values[key] = value
    kind = values.get("Type", "simple")
    if kind not in {"simple", "exec", "oneshot"}:
        raise ValueError(f"{name}: Type={kind} is not supported")
    return Unit(
        name=name,
        command=tuple(shlex.split(values["ExecStart"])),
        # The prefix + is for root; here all processes have one user.
        preparation=tuple(shlex.split(values.get("ExecStartPre", "").removeprefix("+"))),
        folder=values.get("WorkingDirectory"),
        environment=environment,
        oneshot=kind == "oneshot",
        remain_after_exit=values.get("RemainAfterExit", "no") in {"yes", "true"},
        restart=values.get("Restart", "no"),
        restart_seconds=parse_seconds(values.get("RestartSec", "0.1")),
        stop_timeout_seconds=parse_seconds(values.get("TimeoutStopSec", "90")),
        kill_mode_mixed=values.get("KillMode") == "mixed",
        watchdog_seconds=parse_seconds(values.get("WatchdogSec", "0")),
        can_be_enabled="WantedBy" in values,
    )


def parse_run(arguments: list[str]) -> Unit:
    """Return the transient unit of a systemd-run command. Raises ValueError for an unsupported option or property.

    `--collect` is required: without it a failed unit would stay. Source: systemd-run(1),
    https://www.freedesktop.org/software/systemd/man/latest/systemd-run.html
    """
    command = list(arguments)
    options = [command.pop(0) for _ in takewhile(lambda argument: argument.startswith("-"), arguments)]
    name, collects, lines = "", False, ["[Service]", f"ExecStart={shlex.join(command)}"]
    for option in options:
        key, _, value = option.partition("=")
        match key:
            case "--quiet" | "--no-block":  # the response does not wait for the start in any case
                continue
            case "--collect":
                collects = True
            case "--unit":
                name = value
            case "--service-type":
                lines.append(f"Type={value}")
            case "--property":
                lines.append(value)
            case _:
                raise ValueError(f"systemd-run: {option} is not supported")
    if not (name and collects and command):
        raise ValueError("systemd-run: only a command with --unit and --collect is supported")
    return parse(name, "\n".join(lines))


def read_environment_files(pattern: str) -> dict[str, str]:
    """Return the variables of the files that match the pattern. Raises ValueError if no file matches.

    A pattern that starts with a hyphen may match no file.
    """
    path = Path(pattern.removeprefix("-"))
    files = sorted(path.parent.glob(path.name))
    if not files and not pattern.startswith("-"):
        raise ValueError(f"{pattern} matches no file")
    lines = [line for file in files for line in file.read_text().splitlines() if line and line[0] not in "#;"]
    pairs = (shlex.split(line)[0].partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def parse_seconds(text: str) -> float:
    """Parse a systemd time span: a number of seconds, or a number with a unit (s, min, ms)."""
    for suffix, factor in (("ms", 0.001), ("min", 60.0), ("s", 1.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def load(name: str, root: Path) -> Unit | None:
    """Read a unit from the node's disk; None if it does not exist."""
    file = root / "etc/systemd/system" / name
    return parse(name, file.read_text()) if file.exists() else None
