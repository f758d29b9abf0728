"""Parser of torchrun's failure report."""

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
    (failure,) = parse_failures(REPORT, tmp_path, 0.0)
    assert (failure.rank, failure.exitcode, failure.message) == (3, 1, "ValueError: no good")
    assert "Traceback" in failure.traceback
    assert failure.time > 1_700_000_000


def test_signal_is_the_message(tmp_path: Path) -> None:
    report = REPORT.replace("exitcode  : 1", "exitcode  : -9")
    (failure,) = parse_failures(report, tmp_path, 0.0)
    assert failure.message == "ended by signal 9"


def test_exception_before_an_abort_is_the_message(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: no good"]
    rank_stderr(tmp_path, 1, "\n".join([*lines, "terminate called without an active exception"]))
    report = REPORT.replace("exitcode  : 1", "exitcode  : -6")
    (failure,) = parse_failures(report, tmp_path, 0.0)
    assert failure.message == "ValueError: no good"


def test_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    lines = [
        '  File "/opt/job/train.py", line 3',
        "    def broken(",
        "              ^",
        "SyntaxError: '(' was never closed",
    ]
    rank_stderr(tmp_path, 1, "".join(f"[rank3]: {line}\n" for line in lines))
    (failure,) = parse_failures(REPORT, tmp_path, 0.0)
    assert failure.message == "SyntaxError: '(' was never closed (train.py, line 3)"


def test_output_without_report_has_no_failures(tmp_path: Path) -> None:
    assert parse_failures("the rendezvous store is unavailable", tmp_path, 0.0) == ()
