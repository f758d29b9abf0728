"""The report of the software that nodes install after the start of a Capacity Block."""

import pytest

from tests.manifests import MANIFEST
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import tags
from trainyard.operations import prestart_checks
from trainyard.operations.cluster import Cluster
from trainyard.operations.images import compute_content

GROUP = MANIFEST.groups[0].model_copy(update={"gpus": 8, "efa_interfaces": 16, "image": "ami-1"})
BLOCK_MANIFEST = MANIFEST.model_copy(update={"groups": (GROUP,), "fsx": None})


def reported(monkeypatch: pytest.MonkeyPatch, image_tags: dict[str, str]) -> list[str]:
    tag_list = [{"Key": key, "Value": value} for key, value in image_tags.items()]
    image = {"State": "available", "Tags": tag_list}
    monkeypatch.setattr(prestart_checks, "describe_image", lambda region, name: image)
    cluster, display = Cluster("s", "us-east-1"), RecordingDisplay()
    cluster.__dict__["manifest"] = BLOCK_MANIFEST
    prestart_checks.check_before_start(cluster, display)
    return display.lines


def baked(content: str) -> dict[str, str]:
    return {tags.ROLE: tags.IMAGE, tags.SOURCE: "ami-0", tags.CONTENT: content}


def content(has_drivers: bool) -> str:
    return compute_content(BLOCK_MANIFEST, GROUP, "ami-0", has_drivers).sha256


def test_image_that_is_not_baked_names_all_software(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = reported(monkeypatch, {})
    assert (
        "nodes install what it does not have: the NVIDIA driver, CUDA, the EFA software, the Python environment" in line
    )
    assert "trainyard bake -s s --instance-type c7i.xlarge" in line


def test_image_with_the_software_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(monkeypatch, baked(content(has_drivers=True))) == []


def test_image_baked_on_another_type_needs_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = reported(monkeypatch, baked(content(has_drivers=False)))
    assert line.endswith("nodes install the rest: the NVIDIA driver, CUDA, the EFA software")
