"""Digests of tags in the emulated ECR."""

import boto3
import pytest

from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.conftest import REGION
from tests.ecr import push_image
from trainyard.aws import image_digests
from trainyard.aws.ecr import EcrImage
from trainyard.aws.image_digests import find_image_digest


def test_digest_is_that_of_the_image_which_the_tag_names_now(account: EmulatedAws) -> None:
    image = EcrImage(ACCOUNT, REGION, "digest-of-tag")
    first = push_image(image.repository, "1", "first")
    assert find_image_digest(image, "1") == first
    second = push_image(image.repository, "1", "second")
    assert find_image_digest(image, "1") == second != first


def test_missing_tag_is_a_lookup_error(account: EmulatedAws) -> None:
    push_image("with-another-tag", "1", "content")
    with pytest.raises(LookupError, match="ECR has no tag"):
        find_image_digest(EcrImage(ACCOUNT, REGION, "with-another-tag"), "2")


def test_missing_repository_is_a_lookup_error(account: EmulatedAws) -> None:
    with pytest.raises(LookupError, match="ECR has no repository"):
        find_image_digest(EcrImage(ACCOUNT, REGION, "missing"), "1")


def test_denied_request_is_a_permission_error(
    account: EmulatedAws, node_credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    push_image("denied", "1", "content")
    session = boto3.Session(
        node_credentials["AccessKeyId"], node_credentials["SecretAccessKey"], node_credentials["Token"], REGION
    )
    monkeypatch.setattr(image_digests, "client", lambda service, _: session.client(service))
    with pytest.raises(PermissionError, match="ecr:BatchGetImage"):
        find_image_digest(EcrImage(ACCOUNT, REGION, "denied"), "1")
