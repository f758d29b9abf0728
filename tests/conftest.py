"""What rooms share in their tests: one emulated account in which each test makes its own things."""

from collections.abc import Iterator
from itertools import count

import boto3
import pytest

from contract import objects
from contract.objects import Bucket
from rehearsal.aws.process import EmulatedAws

REGION = "us-east-1"
_numbers = count(1)


@pytest.fixture(scope="session")
def running_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("account"), region=REGION) as running:
        yield running


@pytest.fixture(scope="module")
def account(running_account: EmulatedAws) -> Iterator[EmulatedAws]:
    """An emulated AWS, found by the environment as everything of ours finds it; other rooms have their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in running_account.environment().items():
            patch.setenv(name, value)
        objects.client.cache_clear()
        yield running_account
    objects.client.cache_clear()


@pytest.fixture
def bucket(account: EmulatedAws) -> Bucket:
    """An empty bucket."""
    name = f"bucket-{next(_numbers)}"
    boto3.client("s3", region_name=REGION).create_bucket(Bucket=name)
    return Bucket(name, REGION)
