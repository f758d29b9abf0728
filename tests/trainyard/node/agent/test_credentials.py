"""Credentials of the job: what its sessions allow, and the endpoint."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from rehearsal.aws.iam.policies import AccessRequest, evaluate_policies
from rehearsal.aws.process import EmulatedAws
from tests.manifests import MANIFEST, record_of
from trainyard.models.run import RunRecord
from trainyard.node.agent.credentials import CredentialsServer, JobCredentials, session_policy

BUCKET = f"arn:aws:s3:::{MANIFEST.data_bucket}"


def record(**job: Any) -> RunRecord:
    changed = MANIFEST.job.model_copy(update=job)
    return record_of(MANIFEST, changed, 2).model_copy(update={"run": "run-1"})


def allows(run: RunRecord, action: str, resource: str) -> bool:
    return evaluate_policies([session_policy(MANIFEST, run)], AccessRequest(action, resource)) == "Allow"


def test_the_job_writes_its_own_checkpoints_and_results() -> None:
    run = record()
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert allows(run, action, f"{BUCKET}/runs/run-1/checkpoints/step-1/.metadata")
        assert allows(run, action, f"{BUCKET}/runs/run-1/results/model.pt")


@pytest.mark.parametrize(
    "key",
    [
        "runs/run-1/control.json",
        "runs/run-1/run.json",
        "runs/run-1/events/i-1/0001/agent-00000000.jsonl",
        "runs/run-2/checkpoints/step-1/.metadata",
        "runs/run-10/checkpoints/step-1/.metadata",
        "datasets/secret/1",
        "replaced-nodes.json",
    ],
)
def test_other_objects_are_not_read_or_written(key: str) -> None:
    run = record(data_uri=f"s3://{MANIFEST.data_bucket}/datasets/books/")
    assert not any(allows(run, action, f"{BUCKET}/{key}") for action in ("s3:GetObject", "s3:PutObject"))


def test_data_and_model_are_read_only() -> None:
    data, model = f"s3://{MANIFEST.data_bucket}/datasets/books/", "s3://models/llama/"
    run = record(data_uri=data, model_uri=model)
    for resource in (f"{BUCKET}/datasets/books/1", "arn:aws:s3:::models/llama/config.json"):
        assert allows(run, "s3:GetObject", resource)
        assert not allows(run, "s3:PutObject", resource)


def test_checkpoints_of_the_run_to_resume_are_read_only() -> None:
    run, key = record(resume="run-0"), f"{BUCKET}/runs/run-0/checkpoints/step-9/.metadata"
    assert allows(run, "s3:GetObject", key)
    assert not allows(run, "s3:PutObject", key)


def test_prefixes_that_are_too_long_for_sts_are_one_error() -> None:
    with pytest.raises(ValueError, match="use shorter prefixes"):
        session_policy(MANIFEST, record(data_uri=f"s3://bucket/{'x' * 1000}/", model_uri=f"s3://b/{'y' * 1000}/"))


@pytest.fixture
def server(account: EmulatedAws) -> Iterator[CredentialsServer]:
    started = CredentialsServer(JobCredentials(MANIFEST, record(), "i-1"))
    yield started
    started.close()


def fetch(server: CredentialsServer, token: str | None) -> int:
    variables = dict(server.variables())
    request = urllib.request.Request(variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"])
    if token is not None:
        request.add_header("Authorization", token)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            content = json.load(response)
            assert set(content) == {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"}
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_token_is_required(server: CredentialsServer) -> None:
    assert fetch(server, server.token) == 200
    assert [fetch(server, token) for token in (None, "", "wrong")] == [403, 403, 403]


def test_an_sdk_uses_the_endpoint(server: CredentialsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.variables():
        monkeypatch.setenv(name, value)
    credentials = boto3.Session().get_credentials()
    assert credentials is not None
    assert (credentials.method, credentials.access_key[:4]) == ("container-role", "ASIA")


def test_a_restarted_agent_serves_at_the_same_address(server: CredentialsServer) -> None:
    before = dict(server.variables())
    server.close()
    again = CredentialsServer(JobCredentials(MANIFEST, record(), "i-1"), server.port, server.token)
    try:
        assert dict(again.variables()) == before
        assert fetch(again, server.token) == 200
    finally:
        again.close()
