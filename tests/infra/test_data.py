"""The data and the model that a job reads: permissions of the workers, and the validation in each preview."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import pulumi
import pytest
from botocore.exceptions import ClientError

from infra.lookups.account import AccountFacts
from infra.lookups.data import SourceFacts, _lookup_problem
from infra.validators.data import cross_region_cost
from rehearsal.adapter.deployment import Deployment
from rehearsal.aws.process import EmulatedAws
from tests.conftest import REGION
from tests.infra.test_identity import policy_of
from trainyard.aws.clients import client
from trainyard.errors import InputError
from trainyard.models.dataset import INDEX

Changed = Callable[..., Deployment]
KEY = "arn:aws:kms:eu-west-1:123456789012:key/theirs"
SCRIPT = {"name": "a", "source": "examples/custom-job", "command": ["train.py"]}
BOOKS = {**SCRIPT, "data": "s3://corpora/books"}
FILES = {"objects": {"books/1.txt": "one"}}
ENCRYPTED = {"objects": {"books/1.txt": "one"}, "object_properties": {"sseKmsKeyId": KEY}}
ABROAD = {"bucket_regions": {"corpora": "eu-west-1"}}


def manifest_job(run: Deployment) -> dict[str, Any]:
    """The job in the manifest."""
    (stored,) = [
        each for each in run.resources_of_type("aws:s3/bucketObjectv2:BucketObjectv2") if each.name == "manifest"
    ]
    job: dict[str, Any] = json.loads(stored.inputs["content"])["job"]
    return job


def codes(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def test_workers_read_the_prefix_of_the_data_and_no_other(changed: Changed) -> None:
    statements = {item["Sid"]: item for item in policy_of(changed(account=FILES, job=BOOKS), "identity-workers")}
    assert statements["ReadSource1"]["Resource"] == ["arn:aws:s3:::corpora/books", "arn:aws:s3:::corpora/books/*"]
    assert statements["ReadSource1"]["Action"] == ["s3:GetObject"]
    assert statements["ListSource1"]["Resource"] == ["arn:aws:s3:::corpora"]


@pytest.fixture
def worker_s3(changed: Changed, account: EmulatedAws) -> Any:
    """An S3 client with the permissions of a worker for BOOKS; the bucket has books/1.txt and private.txt."""
    statements = [
        item
        for item in policy_of(changed(account=FILES, job=BOOKS), "identity-workers")
        if item["Sid"].endswith("Source1")
    ]
    s3, iam = client("s3", REGION), client("iam", REGION)
    s3.create_bucket(Bucket="corpora")
    for key in ("books/1.txt", "private.txt"):
        s3.put_object(Bucket="corpora", Key=key, Body=b"x")
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    arn = iam.create_role(RoleName="worker", AssumeRolePolicyDocument=document(trust))["Role"]["Arn"]
    iam.put_role_policy(RoleName="worker", PolicyName="worker", PolicyDocument=document(*statements))
    keys = client("sts", REGION).assume_role(RoleArn=arn, RoleSessionName="worker")["Credentials"]
    session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], region_name=REGION)
    return session.client("s3", endpoint_url=account.endpoint)


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def test_libraries_receive_404_for_missing_keys_and_for_the_prefix_without_slash(worker_s3: Any) -> None:
    for key in ("books", "books/missing.txt"):
        with pytest.raises(ClientError) as error:
            worker_s3.head_object(Bucket="corpora", Key=key)
        assert error.value.response["Error"]["Code"] == "404", key
    assert worker_s3.get_object(Bucket="corpora", Key="books/1.txt")["Body"].read() == b"x"
    with pytest.raises(ClientError, match="AccessDenied"):
        worker_s3.get_object(Bucket="corpora", Key="private.txt")


def test_workers_decrypt_with_the_key_of_the_bucket_through_s3_of_its_region(changed: Changed) -> None:
    account = {**ENCRYPTED, **ABROAD}
    statements = {
        item["Sid"]: item
        for item in policy_of(changed(account=account, job={**BOOKS, "kms_keys": [KEY]}), "identity-workers")
    }
    assert statements["SourceKeys"]["Resource"] == [KEY]
    assert statements["SourceKeys"]["Action"] == ["kms:Decrypt"]
    assert statements["SourceKeys"]["Condition"] == {"StringEquals": {"kms:ViaService": ["s3.eu-west-1.amazonaws.com"]}}


def test_manifest_has_the_uris_of_data_and_model(changed: Changed) -> None:
    objects = {"books/1.txt": "one", "datasets/llama/config.json": "{}"}
    account = {"objects": objects, "retained_bucket": "trainyard-data-1"}
    job = manifest_job(changed(account=account, job={**BOOKS, "model": "dataset:llama"}))
    assert (job["data_uri"], job["model_uri"]) == ("s3://corpora/books/", "s3://trainyard-data-1/datasets/llama/")


def test_job_without_data_has_no_uri(changed: Changed) -> None:
    job = manifest_job(changed(job=SCRIPT))
    assert (job["data_uri"], job["model_uri"]) == (None, None)


@pytest.mark.parametrize(
    ("account", "job", "code"),
    [
        ({}, {**SCRIPT, "dataset": "d"}, "dataset_missing"),
        ({"retained_bucket": "trainyard-data-1"}, {**SCRIPT, "dataset": "d"}, "dataset_missing"),
        (
            {"retained_bucket": "trainyard-data-1", "objects": {"datasets/d/1": "", "uploads/d/incomplete": ""}},
            {**SCRIPT, "dataset": "d"},
            "dataset_incomplete",
        ),
        ({"objects": {"books/": ""}}, BOOKS, "dataset_missing"),
        ({"bucket_regions": {}}, BOOKS, "bucket_missing"),
        (FILES, {"name": "a", "data": "s3://corpora/books", "train": {}}, "dataset_index_missing"),
        ({"objects": {"m/x": ""}}, {**SCRIPT, "model": "s3://corpora/books"}, "dataset_missing"),
        (ENCRYPTED, BOOKS, "kms_key_missing"),
        (FILES, {**BOOKS, "kms_keys": [KEY]}, "kms_key_region"),
    ],
)
def test_preview_refuses_data_that_nodes_cannot_read(
    changed: Changed, account: dict[str, Any], job: dict[str, Any], code: str
) -> None:
    with pytest.raises(InputError) as error:
        changed(account=account, job=job)
    assert codes(error) == [code]


def test_denied_lookup_names_the_permissions_that_the_provider_needs() -> None:
    problem = _lookup_problem("job.data", "s3://corpora/books/", RuntimeError("AccessDenied: not authorized"))
    for action in ("s3:ListBucket", "s3:GetObject ", "s3:GetObjectTagging"):
        assert action in problem.fix


def test_preview_refuses_a_pretrained_model_without_config(changed: Changed) -> None:
    objects = {f"books/{INDEX}": "{}", "m/model.safetensors": ""}
    model = {"kind": "hugging_face", "path": "$MODEL_PATH", "weights": True}
    job = {"name": "a", "data": "s3://corpora/books", "model": "s3://corpora/m", "train": {"model": model}}
    with pytest.raises(InputError) as error:
        changed(account={"objects": objects}, job=job)
    assert codes(error) == ["dataset_index_missing"]
    assert "config.json" in str(error.value)


def test_preview_refuses_another_region_without_nat_gateway(changed: Changed) -> None:
    network, node = {"nat_gateway": False}, {"provisioning": "skip"}
    with pytest.raises(InputError) as error:
        changed(account={**FILES, **ABROAD}, job=BOOKS, network=network, node=node)
    assert codes(error) == ["bucket_not_reachable"]


def test_missing_dataset_of_a_deployed_stack_is_a_warning(changed: Changed) -> None:
    account = {"retained_bucket": "trainyard-data-1", "cluster_exists": True}
    assert manifest_job(changed(account=account, job={**SCRIPT, "dataset": "d"}))["data_uri"]


def test_archived_objects_are_a_warning_because_they_may_be_restored(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, *_: warnings.append(text))
    changed(account={**FILES, "object_properties": {"storageClass": "GLACIER"}}, job=BOOKS)
    assert any("job.data = s3://corpora/books/: objects are archived" in text for text in warnings)


def test_cost_of_another_region_has_price_and_amount() -> None:
    facts = AccountFacts(partition="aws", dns_suffix="x", region="us-east-1", account="1", zones=(), offers=frozenset())
    source = SourceFacts(
        key="job.data", value="s3://b/p/", uri="s3://b/p/", region="eu-west-1", objects=3, bytes=10**12
    )
    text = cross_region_cost(facts, source)
    assert text is not None
    assert "0.065 USD per GB" in text
    assert "1,000.00 GB (3 objects) costs 65.00 USD" in text
