"""Parser of torchrun's failure report."""

import os
from datetime import datetime
from pathlib import Path

from trainyard.node.agent.rank_failures import parse_failures

REPORT = """
E1121 18:30:12.000 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 77)
============================================================
trainer FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_18:30:11
  host      : node
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def rank_stderr(folder: Path, local: int, text: str) -> None:
    target = folder / "run_abc" / "attempt_0" / str(local)
    target.mkdir(parents=True)
    (target / "stderr.log").write_text(text)


def test_failure_has_rank_and_traceback(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: no good"]
    rank_stderr(tmp_path, 1, "".join(f"[rank3]: {line}\n" for line in lines))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert (failure.rank, failure.local_rank, failure.exitcode, failure.message) == (3, 1, 1, "ValueError: no good")
    assert "Traceback" in failure.traceback
    assert failure.time > 1_700_000_000


def test_signal_is_the_message(tmp_path: Path) -> None:
    report = REPORT.replace("exitcode  : 1", "exitcode  : -9")
    (failure,) = parse_failures(report, tmp_path, 0.0, 8)
    assert failure.message == "ended by signal 9"


def test_exception_before_an_abort_is_the_message(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: no good"]
    rank_stderr(tmp_path, 1, "\n".join([*lines, "terminate called without an active exception"]))
    report = REPORT.replace("exitcode  : 1", "exitcode  : -6")
    (failure,) = parse_failures(report, tmp_path, 0.0, 8)
    assert failure.message == "ValueError: no good"


def test_first_line_of_an_exception_with_several_lines_is_the_message(tmp_path: Path) -> None:
    """NCCL's errors end with lines that name a library instead of the peer that exited."""
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3',
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Last error:",
        "NET/OFI Request completed with error",
    ]
    rank_stderr(tmp_path, 1, "\n".join(lines))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert failure.message == lines[2]
    assert failure.traceback.endswith("NET/OFI Request completed with error")


def test_lines_of_libraries_after_the_traceback_are_not_part_of_it(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3', "KeyError: 'label'"]
    noise = ["[W1121 18:30:12.000 ProcessGroupGloo.cpp:1] Warning: destroy_process_group() was not called"]
    ignored = ["Exception ignored in: <function Loader.__del__>", lines[0], lines[1], "OSError: closed"]
    rank_stderr(tmp_path, 1, "\n".join(["step 1", *lines, *noise * 200, *ignored]))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert (failure.message, failure.traceback) == ("KeyError: 'label'", "\n".join(lines))


def test_causes_of_an_exception_are_part_of_its_traceback(tmp_path: Path) -> None:
    first = ["Traceback (most recent call last):", '  File "data.py", line 1', "OSError: disk"]
    chained = ["", "The above exception was the direct cause of the following exception:", ""]
    second = ["Traceback (most recent call last):", '  File "train.py", line 3', "RuntimeError: no data"]
    rank_stderr(tmp_path, 1, "\n".join(["step 1", *first, *chained, *second]))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert failure.message == "RuntimeError: no data"
    assert failure.traceback == "\n".join([*first, *chained, *second])


def test_time_is_that_of_the_last_line_within_the_reported_second(tmp_path: Path) -> None:
    """The reported time has whole seconds: ranks that failed in the same second would have no order."""
    rank_stderr(tmp_path, 1, "ValueError: no good\n")
    written = datetime(2026, 11, 21, 18, 30, 10).timestamp() + 0.25
    (file,) = tmp_path.glob("*/*/1/stderr.log")
    os.utime(file, (written, written))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert failure.time == written


def test_last_line_without_traceback_is_the_message(tmp_path: Path) -> None:
    rank_stderr(tmp_path, 1, "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n")
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert failure.message == "train.py: error: unrecognized arguments: --x"


def test_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    lines = [
        '  File "/opt/job/train.py", line 3',
        "    def broken(",
        "              ^",
        "SyntaxError: '(' was never closed",
    ]
    rank_stderr(tmp_path, 1, "".join(f"[rank3]: {line}\n" for line in lines))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0, 8)
    assert failure.message == "SyntaxError: '(' was never closed (train.py, line 3)"


def test_output_without_report_has_no_failures(tmp_path: Path) -> None:
    assert parse_failures("the rendezvous store is unavailable", tmp_path, 0.0, 8) == ()


def test_failure_without_the_folder_of_the_logs_is_reported(tmp_path: Path) -> None:
    (failure,) = parse_failures(REPORT, tmp_path / "deleted", 0.0, 8)
    assert (failure.rank, failure.message) == (3, "exit code 1")


def test_logs_behind_a_link_are_not_read(tmp_path: Path) -> None:
    rank_stderr(tmp_path / "other", 1, "ValueError: secret\n")
    (tmp_path / "logs").symlink_to(tmp_path / "other")
    (failure,) = parse_failures(REPORT, tmp_path / "logs", 0.0, 8)
    assert failure.message == "exit code 1"
