"""What the name of an image says of where it lies."""

import pytest

from trainyard.aws.ecr import EcrImage, ecr_image

HOST = "763104351884.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize("end", ["", ":2.9.0-gpu-py312", "@sha256:0123", ":2.9@sha256:0123"])
def test_account_region_and_repository_are_read_off_its_name(end: str) -> None:
    assert ecr_image(f"{HOST}/team/pytorch{end}") == EcrImage("763104351884", "us-east-1", "team/pytorch")


def test_registries_of_china_have_their_own_domain() -> None:
    found = ecr_image("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.9")
    assert found == EcrImage("727897471807", "cn-north-1", "pytorch-training")


@pytest.mark.parametrize(
    "image", [None, "nvcr.io/nvidia/pytorch:26.10-py3", "public.ecr.aws/deep-learning-containers/x", f"me.io/{HOST}/x"]
)
def test_others_lie_elsewhere(image: str | None) -> None:
    assert ecr_image(image) is None
