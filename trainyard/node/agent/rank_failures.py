"""Parser for failures of ranks: torchrun's final report and the stderr of the ranks."""

import os
import re
import signal
from datetime import datetime
from pathlib import Path

from trainyard.models.events import RankFailure

_TRACEBACK_BYTES = 6000
# Signals of C++ threads that may follow when an exception has ended the interpreter: the exception is the cause.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch adds it to each line of an uncaught exception


def rank_log_folders(logs: Path) -> dict[int, Path]:
    """Local rank -> folder of its stdout.log and stderr.log, as torchrun creates them: `<id>/attempt_0/<rank>`."""
    return {int(folder.name): folder for folder in logs.glob("*/attempt_0/*") if folder.name.isdigit()}


_FAILURE = re.compile(
    r"time\s*:\s*(?P<time>\S+)\s*\n.*?rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s*\n"
    r".*?exitcode\s*:\s*(?P<exitcode>-?\d+)",
    re.DOTALL,
)


def parse_failures(report: str, logs: Path, noticed_at: float) -> tuple[RankFailure, ...]:
    """Failures of the ranks that torchrun's final report on stderr names, each with the last part of its stderr.

    `noticed_at`: Unix time to use if that in the report is not valid.
    """
    folders = rank_log_folders(logs)
    failures: dict[int, RankFailure] = {}
    for match in _FAILURE.finditer(report):
        rank, local, exitcode = int(match["rank"]), int(match["local"]), int(match["exitcode"])
        tail = _RANK.sub("", _tail(folders[local] / "stderr.log")) if local in folders else ""
        lines = [line for line in tail.splitlines() if line.strip()]
        if exitcode >= 0:
            message = _add_location(_exception_line(lines), tail) or f"exit code {exitcode}"
        else:
            message = (exitcode in _CRASHES and _uncaught_exception(lines)) or f"ended by signal {-exitcode}"
        failures[rank] = RankFailure(
            rank=rank, time=_parse_time(match["time"], noticed_at), exitcode=exitcode, message=message, traceback=tail
        )
    return tuple(failures[rank] for rank in sorted(failures))


def _uncaught_exception(lines: list[str]) -> str:
    """The exception of the last traceback in `lines`; empty without a traceback."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    after = lines[starts[-1] + 1 :] if starts else []
    return next((line[:400] for line in after if not line.startswith(" ")), "")


def _parse_time(text: str, default: float) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return default


def _exception_line(lines: list[str]) -> str:
    """The line of the exception: the last that is not indented and not a warning of the interpreter's shutdown."""
    for line in reversed(lines):
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)?\b.*", line) and not line.startswith(" "):
            if "Warning" in line.split(":")[0]:
                continue
            return line[:400]
    return ""


def _add_location(message: str, tail: str) -> str:
    """Add file and line to the message of a syntax error, which does not contain them."""
    if not re.match(r"(Syntax|Indentation|Tab)Error\b", message):
        return message
    places = re.findall(r'^\s*File "([^"]+)", line (\d+)', tail, re.MULTILINE)
    return f"{message} ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else message


def _tail(file: Path) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TRACEBACK_BYTES))
        return stream.read().decode(errors="replace")
