"""The report of the selftest: what is redacted, and what is not."""

import pytest

from trainyard.operations.selftest.redaction import private_texts, redact

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
    assert redact(text) == redacted


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
    assert redact(text) == text


def test_texts_of_this_machine_and_account_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("WANDB_TOKEN", "token-of-the-job")
    monkeypatch.setenv("HOME", "/data/jane")
    monkeypatch.setattr("getpass.getuser", lambda: "jdoe42")
    private = private_texts({"Account": ACCOUNT, "Arn": ARN})
    text = f"jane.doe in Operators: {SECRET} token-of-the-job /data/jane/x jdoe42"
    assert redact({"key": [text]}, private)["key"][0] == "<name> in <name>: <secret> <secret> ~/x <user>"
