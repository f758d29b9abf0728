"""TLS certificates that boto3 trusts: variables of the environment, and the error of an untrusted certificate."""

from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, SSLError

from tests.tls import create_authority, https_server
from trainyard.aws.certificates import trusted_certificates
from trainyard.aws.credentials import access_problem

VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def call(url: str) -> None:
    """List buckets at a server that responds with an error of HTTP."""
    config = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    s3 = boto3.client(
        "s3", region_name="us-east-1", endpoint_url=url, config=config, verify=trusted_certificates(), **keys
    )
    s3.get_object(Bucket="bucket", Key="missing")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", VARIABLES)
def test_certificate_of_a_variable_is_trusted(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, server = create_authority(tmp_path)
    monkeypatch.setenv(variable, str(authority))
    with https_server(tmp_path, server) as url, pytest.raises(ClientError, match="404"):
        call(url)


def test_untrusted_certificate_is_a_user_error(tmp_path: Path) -> None:
    _, server = create_authority(tmp_path)
    with https_server(tmp_path, server) as url, pytest.raises(SSLError) as error:
        call(url)
    problem = access_problem(error.value)
    assert problem is not None
    assert (problem.code, problem.value.startswith(url)) == ("certificate_untrusted", True)
