"""The report of the selftest: what is redacted, and what is not."""

from pathlib import Path

import pytest

from trainyard.operations.selftest_facts import private_texts
from trainyard.operations.selftest_project import error_lines, progress_lines
from trainyard.operations.selftest_report import Leftover, Redactor, SelftestReport, Step, write_report

ACCOUNT, ARN = "210987654321", "arn:aws:sts::210987654321:assumed-role/Operators/jane.doe"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"account {ACCOUNT}", "account <account>"),
        (f"arn:aws:s3:us-east-1:{ACCOUNT}:x", "arn:aws:s3:us-east-1:<account>:x"),
        (f"{ARN} is not authorized", "arn:aws:sts::<account>:assumed-role/<name> is not authorized"),
        (f"arn:aws-cn:iam::{ACCOUNT}:user/team/jane.", "arn:aws:iam::<account>:user/<name>"),
        ("to jane.doe@example.com: denied", "to <email>: denied"),
        ("from 203.0.113.7:443 and 10.42.0.0/16.", "from <ip>:443 and <ip>/16."),
        ("ip-10-42-1-2.ec2.internal", "<ip>.ec2.internal"),
        ("2001:db8::8a2e:370:7334 and 2001:db8:0:1:1:1:1:1", "<ip> and <ip>"),
        ("AKIAIOSFODNN7EXAMPLE", "<access-key>"),
        (f"aws_secret_access_key = {SECRET}", "aws_secret_access_key = <secret>"),
        ('{"SessionToken": "abc/def=="}', '{"SessionToken": "<secret>"}'),
        ("/home/jane/trainyard/.venv", "/home/<user>/trainyard/.venv"),
        ("/Users/jane/trainyard", "/Users/<user>/trainyard"),
    ],
)
def test_private_texts_are_redacted(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "capacity reserved 1 x g6e.12xlarge in us-east-1a (cr-0123456789abcdef0), 10.49 USD per hour",
        "20261123-233845-stdlib-600f i-3ed59ddb9b2a49e1d",
        "driver 580.126.09, NCCL 2.28.3, EFA installer 1.51.0",
        "urn:pulumi:selftest-ab12::trainyard::aws:s3/bucket:Bucket::data",
        "s3://trainyard-data-c548ef8/datasets/python-stdlib/ at 12:34:56",
        "tokens of the corpus are bytes, tokens_per_second: 1234",
    ],
)
def test_facts_of_the_launch_are_not_redacted(text: str) -> None:
    assert Redactor().text(text) == text


def test_texts_of_this_machine_and_account_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("WANDB_TOKEN", "token-of-the-job")
    monkeypatch.setenv("HOME", "/data/jane")
    monkeypatch.setattr("getpass.getuser", lambda: "jdoe42")
    redactor = Redactor(private_texts({"Account": ACCOUNT, "Arn": ARN}))
    text = redactor.text(f"jane.doe in Operators: {SECRET} token-of-the-job /data/jane/x jdoe42")
    assert text == "<name> in <name>: <secret> <secret> ~/x <user>"


def test_both_files_are_redacted(tmp_path: Path) -> None:
    step = Step(run="1", command="c", expectation="e", proves="p", status="failed", errors=(f"denied: {ARN}",))
    leftover = Leftover(kind="s3", id=f"logs-{ACCOUNT}", state="", retained=False, price="p", command=ACCOUNT)
    report = SelftestReport(
        ok=False,
        interrupted=False,
        stack="selftest-1",
        region="us-east-1",
        started="now",
        versions={},
        steps=(step,),
        leftovers=(leftover,),
        errors=(ACCOUNT,),
        estimated_usd=1.0,
        maximum_usd=2.0,
    )
    write_report(report, tmp_path / "report.json", Redactor([(ACCOUNT, "<account>"), ("jane.doe", "<name>")]))
    for name in ("report.json", "report.md"):
        text = (tmp_path / name).read_text()
        assert "denied" in text
        assert ACCOUNT not in text
        assert "jane" not in text
        assert text.rstrip().rstrip('"}\n').endswith("issue tracker of the project.")


def test_errors_are_the_diagnostics_without_warnings() -> None:
    output = " +  a creating\nDiagnostics:\n  a (x):\n    warning: w\n    error: e\nResources:\n    + 3 created\n"
    assert error_lines(output) == ["Diagnostics:", "  a (x):", "    error: e"]


def test_without_diagnostics_the_last_lines_are_the_errors() -> None:
    assert error_lines("one\n\ntwo\n") == ["one", "two"]


def test_progress_lines_are_listed_once() -> None:
    line = "  12.0 s  head                 10.42.0.5 ready"
    output = f" +  command:local:Command launch creating (5s) {line}\nDiagnostics:\n    {line}\n"
    assert progress_lines(output) == [line.strip()]
