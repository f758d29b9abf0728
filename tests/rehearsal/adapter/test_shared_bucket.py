"""A bucket of the user belongs to one stack."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import yaml

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from tests.problems import rejects
from tests.rehearsal.adapter.conftest import ROOT, start_account
from trainyard.models.layout import STACK_OF_BUCKET

BUCKET = "team-data"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with start_account(tmp_path_factory.mktemp("aws")) as running:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield running


def deploy(aws: EmulatedAws, stack: str) -> Deployment:
    config: dict[str, Any] = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())["config"]
    config["trainyard:cluster"]["storage"] = {"bucket": BUCKET}
    return up(config, stack, ROOT, account=EmulatedAccount(aws.region, run_commands=False))


def test_bucket_belongs_to_the_first_stack_also_after_its_end(aws: EmulatedAws) -> None:
    first = deploy(aws, "first")
    with rejects("data_bucket_of_one_stack", "it belongs to stack trainyard/first"):
        deploy(aws, "second")
    destroy(first)
    with rejects("data_bucket_of_one_stack", "it belongs to stack trainyard/first"):
        deploy(aws, "second")
    destroy(deploy(aws, "first"))  # the same stack may use it again
    boto3.client("s3").delete_object(Bucket=BUCKET, Key=STACK_OF_BUCKET)
    deploy(aws, "second")
