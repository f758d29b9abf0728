"""Errors of credentials, profile, region and network end each command with one message and exit status 2."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    LoginRefreshRequired,
    NoRegionError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from typer.testing import CliRunner

from rehearsal.aws.faults import ExpiredCredentials
from rehearsal.aws.process import EmulatedAws
from trainyard.aws import clients
from trainyard.cli import status
from trainyard.cli.app import app


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment without credentials, and with one profile."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text("[profile training]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it has the credentials of other tests
    clients.client.cache_clear()
    yield
    clients.client.cache_clear()


def message(*options: str) -> str:
    """Run `trainyard status`; return its error, the only output."""
    result = CliRunner().invoke(app, ["status", "--stack", "local", *options])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("trainyard: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("trainyard: ")


def message_of(error: Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run `trainyard status` with an error of its first request; return its error."""

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(status, "read_status", fail)
    return message()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_missing_credentials(options: list[str]) -> None:
    text = message(*options)
    assert text.startswith("AWS_PROFILE: no AWS credentials were found")
    assert "aws sso login, or aws configure; or set AWS_PROFILE to another profile" in text


def test_action_names_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert "aws sso login --profile training" in message()


def test_missing_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "trainin")
    text = message("--json")
    assert text.startswith("AWS_PROFILE = 'trainin': the files of the AWS CLI have no such profile")
    assert "Did you mean training? Use one of training, or create it" in text


def test_expired_keys_of_the_environment(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in account.environment().items():
        monkeypatch.setenv(name, value)
    account.inject(ExpiredCredentials(seconds=0))
    try:
        text = message()
    finally:
        account.clear_faults()
    assert text.startswith("AWS_ACCESS_KEY_ID: the AWS credentials are expired: ExpiredToken")
    assert "export the new keys and session token" in text


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (UnauthorizedSSOTokenError(), "aws sso login"),
        (TokenRetrievalError(provider="sso", error_msg="Token has expired"), "aws sso login"),
        (LoginRefreshRequired(), "aws login"),
    ],
)
def test_expired_session(error: BotoCoreError, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = message_of(error, monkeypatch)
    assert text.startswith("AWS_PROFILE: the AWS credentials are expired: ")
    assert text.endswith(f". Renew them: {action}.\n")


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "InvalidClientTokenId", "Message": "The token is invalid."}}, "GetResources"),
        ClientError(
            {
                "Error": {
                    "Code": "AuthFailure",
                    "Message": "AWS was not able to validate the provided access credentials",
                }
            },
            "DescribeInstances",
        ),
        PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_invalid_credentials(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    text = message_of(error, monkeypatch)
    assert "AWS does not accept the credentials" in text
    assert "aws configure" in text


def test_missing_region(monkeypatch: pytest.MonkeyPatch) -> None:
    assert message_of(NoRegionError(), monkeypatch).startswith("AWS_REGION: no AWS region is set. Set it")


def test_unreachable_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://tagging.us-esat-1.amazonaws.com/"
    text = message_of(EndpointConnectionError(endpoint_url=url), monkeypatch)
    assert text.startswith(f"endpoint = '{url}': no connection to AWS")
    assert "name of the region" in text


def test_denied_permission_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "No."}}, "GetObject")

    monkeypatch.setattr(status, "read_status", fail)
    assert CliRunner().invoke(app, ["status", "--stack", "local"]).exit_code == 1
