"""The variables of a dry run, and its objects in the data bucket."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.manifests import MANIFEST, record_of
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import split_s3_uri
from trainyard.models.manifest import Fsx, Manifest
from trainyard.node.agent.torchrun import job_variables
from trainyard.operations.dry_run import dry_run_variables, find_node_variable

FSX = Fsx(dns_name="fs-1.fsx.us-east-1.amazonaws.com", mount_name="abc", mount_point="/nonexistent/fsx")


def create_manifest(fsx: Fsx | None = None, **job: Any) -> Manifest:
    return MANIFEST.model_copy(update={"fsx": fsx, "job": MANIFEST.job.model_copy(update=job)})


@pytest.fixture
def data(account: EmulatedAws) -> Bucket:
    return clusters.create_cluster(REGION).data


def test_dry_run_has_the_variables_that_nodes_set(data: Bucket, tmp_path: Path) -> None:
    manifest = create_manifest(model="hf://org/m", model_uri="hf://org/m", resume="earlier")
    manifest = manifest.model_copy(update={"data_bucket": data.name})
    run = record_of(manifest, manifest.job, 1)
    on_nodes = job_variables(
        manifest=manifest,
        group=manifest.groups[0],
        run=run,
        attempt=1,
        instance="i-1",
        address="127.0.0.1",
        metrics=tmp_path,
        request=tmp_path,
        cache=tmp_path,
        model="org/m",
    )
    with dry_run_variables(manifest, tmp_path) as variables:
        assert on_nodes.keys() - {"GLOO_SOCKET_IFNAME", "PYTHONUNBUFFERED"} <= variables.keys()
        assert (variables["MODEL_PATH"], variables["WORLD_SIZE"]) == ("org/m", "1")


@pytest.mark.parametrize("fails", [False, True])
def test_each_dry_run_has_a_new_prefix_and_it_is_deleted(data: Bucket, tmp_path: Path, fails: bool) -> None:
    manifest = MANIFEST.model_copy(update={"data_bucket": data.name})
    data.write("dry-run/of-another-launch", b"")
    prefixes = []
    for _ in range(2):
        with suppress(KeyboardInterrupt), dry_run_variables(manifest, tmp_path) as variables:
            prefixes.append(split_s3_uri(variables["CHECKPOINT_URI"])[1])
            data.write(f"{prefixes[-1]}step-1", b"")
            if fails:
                raise KeyboardInterrupt
    assert len(set(prefixes)) == 2
    assert list(data.keys("dry-run/")) == ["dry-run/of-another-launch"]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (create_manifest(), None),
        (create_manifest(model="hf://org/m", model_uri="hf://org/m"), None),
        (create_manifest(model="s3://m/llama/", model_uri="s3://m/llama/"), "MODEL_PATH"),
        (create_manifest(FSX, data="fsx"), "DATA_URI"),
        (create_manifest(FSX), "FSX_PATH"),
    ],
    ids=["all", "hub", "model", "fsx data", "fsx"],
)
def test_variable_that_only_nodes_have(manifest: Manifest, expected: str | None) -> None:
    assert find_node_variable(manifest) == expected
