"""Parser for failures of ranks: torchrun's final report and the stderr of the ranks."""

import re
import signal
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from trainyard.models.events import RankFailure
from trainyard.node.job_user import list_job_folder, read_job_file

_TRACEBACK_BYTES = 6000
# C++ threads and other libraries may write after the traceback, such as the stack of each thread of an abort.
_SEARCHED_BYTES = 256 * 1024
_REPORT_CHARACTERS = 32 * 1024
_SEARCHED_FOLDERS = 100  # torchrun creates one
# Signals of C++ threads that may follow when an exception has ended the interpreter: the exception is the cause.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch adds it to each line of an uncaught exception
_LOG_LINE = re.compile(r"\[[IWEF]\d{4} |terminate called|Fatal Python error|\S+: \w*Warning: |Exception ignored")
_HEADER = "Traceback (most recent call last):"
_NOTICE_SECONDS = 2.0  # torchrun's --monitor-interval, and the fraction that its report omits
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def rank_log_folders(logs: Path, processes: int) -> dict[int, Path]:
    """Local rank -> folder of its stdout.log and stderr.log, as torchrun creates them: `<id>/attempt_0/<rank>`.

    Folders of more than `processes` ranks are ignored: the job may create any number.
    """
    folders: dict[int, Path] = {}
    for run in list_job_folder(logs, _SEARCHED_FOLDERS):
        ranks = ((rank, logs / run / "attempt_0" / str(rank)) for rank in range(processes))
        folders.update({rank: folder for rank, folder in ranks if folder.is_dir()})
    return folders


_FAILURE = re.compile(
    r"time\s*:\s*(?P<time>\S+)\s*\n.*?rank\s*:\s*(?P<rank>\d{1,9}) \(local_rank: (?P<local>\d{1,9})\)\s*\n"
    r".*?exitcode\s*:\s*(?P<exitcode>-?\d{1,9})",
    re.DOTALL,
)


def parse_failures(report: str, logs: Path, noticed_at: float, processes: int) -> tuple[RankFailure, ...]:
    """Failures of the ranks that torchrun's final report on stderr names, each with the traceback of its stderr.

    `noticed_at`: Unix time to use if that in the report is not valid. `processes`: number of ranks of this node.
    """
    folders = rank_log_folders(logs, processes)
    failures: dict[int, RankFailure] = {}
    for match in _FAILURE.finditer(report[-_REPORT_CHARACTERS:]):  # the search is quadratic
        rank, local, exitcode = int(match["rank"]), int(match["local"]), int(match["exitcode"])
        file = folders[local] / "stderr.log" if local in folders else logs / "missing"
        tail = _RANK.sub("", _tail(file))
        message, traceback = _find_exception(tail)
        if exitcode >= 0:
            message = _add_location(message or _last_error_line(tail), tail) or f"exit code {exitcode}"
        elif exitcode not in _CRASHES or not message:
            message = f"ended by signal {-exitcode}"
        failures[rank] = RankFailure(
            rank=rank,
            local_rank=local,
            time=_time_of_failure(match["time"], file, noticed_at),
            exitcode=exitcode,
            message=message,
            traceback=traceback or tail[-_TRACEBACK_BYTES:],
        )
    return tuple(failures[rank] for rank in sorted(failures))


def _find_exception(tail: str) -> tuple[str, str]:
    """First line of the last uncaught exception, and its traceback with those of its causes; empty without one."""
    lines = tail.splitlines()
    starts = [
        number
        for number, line in enumerate(lines)
        if line.startswith(_HEADER) and not (number and lines[number - 1].startswith("Exception ignored"))
    ]
    if not starts:
        return "", ""
    last = starts[-1]
    end = next((number for number in range(last + 1, len(lines)) if lines[number][:1].strip()), None)
    if end is None:
        return "", ""
    first = last
    for start in reversed(starts[:-1]):
        if not any(line.startswith(_CHAINED) for line in lines[start:first]):
            break
        first = start
    return lines[end][:400], "\n".join(lines[first : _end_of_message(lines, end)]).rstrip()[-_TRACEBACK_BYTES:]


def _end_of_message(lines: list[str], start: int) -> int:
    """Number of the line after an exception's message: the end, or the first log line of a library."""
    return next((number for number in range(start + 1, len(lines)) if _LOG_LINE.match(lines[number])), len(lines))


def _time_of_failure(reported: str, stderr: Path, noticed_at: float) -> float:
    """Time of the rank's last line on stderr, if torchrun noticed its exit then: its report has whole seconds only."""
    try:
        seconds = datetime.strptime(reported, "%Y-%m-%d_%H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return noticed_at
    written = 0.0
    with suppress(OSError):  # the job may delete it, or replace it by a link
        written = stderr.lstat().st_mtime
    return written if abs(seconds - written) <= _NOTICE_SECONDS else seconds


def _last_error_line(tail: str) -> str:
    """The last line that is not indented and not a warning, such as the error message of argparse."""
    for line in reversed(tail.splitlines()):
        if re.match(r"[A-Za-z_]", line) and "Warning" not in line.split(":")[0]:
            return line[:400]
    return ""


def _add_location(message: str, tail: str) -> str:
    """Add file and line to the message of a syntax error, which does not contain them."""
    if not re.match(r"(Syntax|Indentation|Tab)Error\b", message):
        return message
    places = re.findall(r'^\s*File "([^"]+)", line (\d+)', tail, re.MULTILINE)
    return f"{message} ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else message


def _tail(file: Path) -> str:
    try:
        return read_job_file(file, _SEARCHED_BYTES).decode(errors="replace")
    except OSError:
        return ""
