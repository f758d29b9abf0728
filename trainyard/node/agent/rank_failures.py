"""What torchrun's closing report and the ranks' own stderr say of a failure."""

import os
import re
import signal
from datetime import datetime
from pathlib import Path

from trainyard.models.events import RankFailure

_TRACEBACK_BYTES = 6000
# What threads of C++ may end an interpreter with that an exception has already ended: that exception is the cause.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch puts it before each line of an uncaught exception


def rank_logs(logs: Path) -> dict[int, Path]:
    """Local rank -> folder of its stdout.log and stderr.log, as torchrun lays them: `<id>/attempt_0/<rank>`."""
    return {int(folder.name): folder for folder in logs.glob("*/attempt_0/*") if folder.name.isdigit()}


_FAILURE = re.compile(
    r"time\s*:\s*(?P<time>\S+)\s*\n.*?rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s*\n"
    r".*?exitcode\s*:\s*(?P<exitcode>-?\d+)",
    re.DOTALL,
)


def failures_in(report: str, logs: Path, noticed: float) -> tuple[RankFailure, ...]:
    """Ranks that torchrun's closing report on stderr names, each with the tail of its own stderr.

    `noticed` is the time used where torchrun's own can't be read.
    """
    folders = rank_logs(logs)
    found: dict[int, RankFailure] = {}
    for match in _FAILURE.finditer(report):
        rank, local, exitcode = int(match["rank"]), int(match["local"]), int(match["exitcode"])
        tail = _RANK.sub("", _tail(folders[local] / "stderr.log")) if local in folders else ""
        lines = [line for line in tail.splitlines() if line.strip()]
        if exitcode >= 0:
            message = _placed(_last_words(lines), tail) or f"exit code {exitcode}"
        else:
            message = (exitcode in _CRASHES and _uncaught(lines)) or f"ended by signal {-exitcode}"
        found[rank] = RankFailure(
            rank=rank, time=_moment(match["time"], noticed), exitcode=exitcode, message=message, traceback=tail
        )
    return tuple(found[rank] for rank in sorted(found))


def _uncaught(lines: list[str]) -> str:
    """The exception that ended Python, whose last traceback stands in `lines`; empty where there is none."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    after = lines[starts[-1] + 1 :] if starts else []
    return next((line[:400] for line in after if not line.startswith(" ")), "")


def _moment(text: str, otherwise: float) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return otherwise


def _last_words(lines: list[str]) -> str:
    """The exception's own line: the last that is not indented and not a warning of the interpreter's shutdown."""
    for line in reversed(lines):
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)?\b.*", line) and not line.startswith(" "):
            if "Warning" in line.split(":")[0]:
                continue
            return line[:400]
    return ""


def _placed(message: str, tail: str) -> str:
    """Of code that can't be read, the words alone say nothing: with its file and line."""
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
