"""What torchrun's report says of a failure."""

from pathlib import Path

from trainyard.node.agent.rank_failures import failures_in

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


def test_the_rank_and_its_own_words_are_found(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: no good"]
    rank_stderr(tmp_path, 1, "".join(f"[rank3]: {line}\n" for line in lines))
    (found,) = failures_in(REPORT, tmp_path, 0.0)
    assert (found.rank, found.exitcode, found.message) == (3, 1, "ValueError: no good")
    assert "Traceback" in found.traceback
    assert found.time > 1_700_000_000


def test_a_signal_is_told_as_one(tmp_path: Path) -> None:
    report = REPORT.replace("exitcode  : 1", "exitcode  : -9")
    (found,) = failures_in(report, tmp_path, 0.0)
    assert found.message == "ended by signal 9"


def test_an_exception_that_aborts_the_interpreter_is_told_as_itself(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: no good"]
    rank_stderr(tmp_path, 1, "\n".join([*lines, "terminate called without an active exception"]))
    report = REPORT.replace("exitcode  : 1", "exitcode  : -6")
    (found,) = failures_in(report, tmp_path, 0.0)
    assert found.message == "ValueError: no good"


def test_code_that_can_not_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    lines = [
        '  File "/opt/job/train.py", line 3',
        "    def broken(",
        "              ^",
        "SyntaxError: '(' was never closed",
    ]
    rank_stderr(tmp_path, 1, "".join(f"[rank3]: {line}\n" for line in lines))
    (found,) = failures_in(REPORT, tmp_path, 0.0)
    assert found.message == "SyntaxError: '(' was never closed (train.py, line 3)"


def test_no_report_is_no_failure(tmp_path: Path) -> None:
    assert failures_in("the rendezvous store is gone", tmp_path, 0.0) == ()
