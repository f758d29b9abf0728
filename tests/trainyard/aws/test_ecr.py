"""Parsing of image references."""

import pytest

from trainyard.aws.ecr import EcrImage, parse_ecr_image

HOST = "763104351884.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize("suffix", ["", ":2.9.0-gpu-py312", "@sha256:0123", ":2.9@sha256:0123"])
def test_reference_is_parsed_into_account_region_and_repository(suffix: str) -> None:
    assert parse_ecr_image(f"{HOST}/team/pytorch{suffix}") == EcrImage("763104351884", "us-east-1", "team/pytorch")


def test_registry_in_china_regions_is_recognized() -> None:
    image = parse_ecr_image("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.9")
    assert image == EcrImage("727897471807", "cn-north-1", "pytorch-training")


@pytest.mark.parametrize(
    "image", [None, "nvcr.io/nvidia/pytorch:26.10-py3", "public.ecr.aws/deep-learning-containers/x", f"me.io/{HOST}/x"]
)
def test_image_outside_private_ecr_registries_is_none(image: str | None) -> None:
    assert parse_ecr_image(image) is None
