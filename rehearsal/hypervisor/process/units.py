"""systemd service units, as far as the node's services use them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

_KNOWN = {
    "Unit": {"Description", "After", "Wants", "StartLimitIntervalSec", "ConditionPathExists"},
    "Install": {"WantedBy"},
    "Service": {
        "Type",
        "ExecStart",
        "WorkingDirectory",
        "Environment",
        "EnvironmentFile",
        "Restart",
        "RestartSec",
        "TimeoutStopSec",
        "TimeoutStartSec",
        "KillMode",
        "RemainAfterExit",
        "LimitMEMLOCK",
        "LimitNOFILE",
        "TasksMax",
        "StandardOutput",
        "StandardError",
    },
}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One service unit."""

    name: str
    command: tuple[str, ...]
    folder: str | None
    environment: dict[str, str]
    oneshot: bool
    remain: bool
    restart: str
    restart_seconds: float
    stop_seconds: float
    mixed: bool


def parse(name: str, text: str) -> Unit:
    """Read a unit file. Raises ValueError for a key that is not known here."""
    found: dict[str, str] = {}
    environment: dict[str, str] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, _, value = line.partition("=")
        if key not in _KNOWN.get(section, set()):
            raise ValueError(f"{name}: {section}.{key} is not rehearsed")
        if key == "Environment":
            for pair in shlex.split(value):
                variable, _, content = pair.partition("=")
                environment[variable] = content
        elif key == "EnvironmentFile":
            environment |= variables_in(value)
        else:
            found[key] = value
    kind = found.get("Type", "simple")
    if kind not in {"simple", "exec", "oneshot"}:
        raise ValueError(f"{name}: Type={kind} is not rehearsed")
    return Unit(
        name=name,
        command=tuple(shlex.split(found["ExecStart"])),
        folder=found.get("WorkingDirectory"),
        environment=environment,
        oneshot=kind == "oneshot",
        remain=found.get("RemainAfterExit", "no") in {"yes", "true"},
        restart=found.get("Restart", "no"),
        restart_seconds=seconds(found.get("RestartSec", "0.1")),
        stop_seconds=seconds(found.get("TimeoutStopSec", "90")),
        mixed=found.get("KillMode") == "mixed",
    )


def variables_in(pattern: str) -> dict[str, str]:
    """Variables of the files that match; none where a pattern that begins with a hyphen matches none."""
    where = Path(pattern.removeprefix("-"))
    files = sorted(where.parent.glob(where.name))
    if not files and not pattern.startswith("-"):
        raise ValueError(f"{pattern} matches no file")
    lines = [line for file in files for line in file.read_text().splitlines() if line and line[0] not in "#;"]
    found = (shlex.split(line)[0].partition("=") for line in lines)
    return {name: value for name, _, value in found}


def seconds(text: str) -> float:
    """A time span of systemd: plain seconds, or with one unit (s, min, ms)."""
    for suffix, factor in (("ms", 0.001), ("min", 60.0), ("s", 1.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def load(name: str, root: Path) -> Unit | None:
    """The unit as it stands on the node's disk; None where there is none."""
    file = root / "etc/systemd/system" / name
    return parse(name, file.read_text()) if file.exists() else None
