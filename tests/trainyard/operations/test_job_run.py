"""`trainyard run`: the job of the stack file with changes, and what needs `pulumi up`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.packaging.archive import Entry, pack
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.manifests import MANIFEST
from tests.trainyard.config.stacks import changed
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.config.project import PROJECT_ROOT, read_project
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError
from trainyard.models.layout import job_source_key
from trainyard.models.manifest import Manifest
from trainyard.operations.cluster import Cluster
from trainyard.operations.job_run import (
    JobOptions,
    change_job,
    create_manifest,
    read_settings,
    upload_source,
    with_deployed_nodes,
)

KEY = "arn:aws:kms:eu-west-1:999988887777:key/12345678-1234-1234-1234-123456789012"
CUSTOM = {"name": "line", "dataset": "d", "source": "examples/custom-job", "command": ["train.py", "--epochs", "3"]}
TRAINER = {"name": "line", "dataset": "d", "train": {"steps": 5}}


def job_file(folder: Path, content: Any) -> Path:
    file = folder / "job.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def settings(**job: Any) -> StackSettings:
    return StackSettings.model_validate(changed({f"job.{key}": value for key, value in job.items()}))


def test_arguments_replace_those_of_the_script() -> None:
    job = change_job(CUSTOM, JobOptions(arguments=("--epochs", "9")))
    assert job["command"] == ["train.py", "--epochs", "9"]


def test_arguments_of_the_trainer_change_its_settings() -> None:
    job = change_job(TRAINER, JobOptions(arguments=("steps=9", "optimizer.learning_rate=0.1")))
    assert job["train"] == {"steps": 9, "optimizer": {"learning_rate": 0.1}}


def test_arguments_of_a_custom_job_with_an_empty_trainer_are_those_of_its_script() -> None:
    job = change_job({**CUSTOM, "train": None}, JobOptions(arguments=("--epochs", "9")))
    assert job["command"] == ["train.py", "--epochs", "9"]


@pytest.mark.parametrize("argument", ["steps", "=5", "steps.deep=1"])
def test_invalid_argument_of_the_trainer_is_refused(argument: str) -> None:
    with pytest.raises(InputError, match="are KEY=VALUE, with a key of"):
        change_job(TRAINER, JobOptions(arguments=(argument,)))


def test_file_replaces_keys_of_the_job(tmp_path: Path) -> None:
    job = change_job(CUSTOM, JobOptions(file=job_file(tmp_path, {"name": "other"})))
    assert job == {**CUSTOM, "name": "other"}


def test_file_of_the_other_kind_replaces_the_job(tmp_path: Path) -> None:
    job = change_job(TRAINER, JobOptions(file=job_file(tmp_path, {"source": "s", "command": ["a.py"]})))
    assert "train" not in job


@pytest.mark.parametrize("content", ["[1]", "a: [", ""])
def test_unusable_file_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="--job-file"):
        change_job(CUSTOM, JobOptions(file=job_file(tmp_path, content)))


def test_settings_are_those_of_the_stack_file_with_the_changes() -> None:
    read = read_settings("custom-job", read_project(PROJECT_ROOT), JobOptions(arguments=("--epochs", "9")))
    assert read.job.command == ("train.py", "--epochs", "9")


def test_unknown_key_of_the_file_is_refused(tmp_path: Path) -> None:
    project = read_project(PROJECT_ROOT)
    with pytest.raises(InputError, match="comand"):
        read_settings("custom-job", project, JobOptions(file=job_file(tmp_path, {"comand": ["a.py"]})))


def test_manifest_has_the_job_and_its_limits() -> None:
    archive = pack({"train.py": Entry(b"")})
    job = settings(train=None, source="examples/custom-job", command=["train.py"], time_limit_minutes=90)
    manifest = create_manifest(MANIFEST, job, archive)
    assert manifest.job.source is not None
    assert manifest.job.source.uri.endswith(job_source_key(archive.sha256))
    assert manifest.limits.time_limit_minutes == 90
    assert manifest.limits.keep_after_failure_minutes == 15
    assert {group.processes_per_node for group in manifest.groups} == {2}
    assert manifest.node_digest() == MANIFEST.node_digest()


def deployed_on(instance_type: str, nodes: int, gpus: int) -> Manifest:
    nodes_of_type = {"instance_type": instance_type, "nodes": nodes, "gpus": gpus, "processes_per_node": gpus}
    return MANIFEST.model_copy(update={"groups": (MANIFEST.groups[0].model_copy(update=nodes_of_type),)})


def test_run_has_a_process_for_each_gpu_of_the_deployed_nodes() -> None:
    deployed, display = deployed_on("p4d.24xlarge", nodes=3, gpus=8), RecordingDisplay()
    edited = StackSettings.model_validate(
        changed({"instance_type": "g5.xlarge", "job.processes_per_node": None, "job.train.batch_size": 96})
    )
    run = with_deployed_nodes(edited, deployed, PROJECT_ROOT, display)
    assert {group.processes_per_node for group in create_manifest(deployed, run, None).groups} == {8}
    assert display.lines == [
        "stack nodes is 2 in the stack file and 3 in the deployed stack, which the run uses: pulumi up changes it",
        "stack instance_type is g5.xlarge in the stack file and p4d.24xlarge in the deployed stack, which the run "
        "uses: pulumi up changes it",
    ]


def test_job_that_does_not_fit_the_deployed_nodes_is_refused() -> None:
    deployed = deployed_on("c7i.xlarge", nodes=3, gpus=0)
    with pytest.raises(InputError, match=r"job\.train\.batch_size.*3 nodes x 2"):
        with_deployed_nodes(settings(train={"batch_size": 8}), deployed, PROJECT_ROOT, RecordingDisplay())


@pytest.mark.parametrize(
    ("job", "key"),
    [
        ({"secrets": {"TOKEN": "/team/token"}}, "job.secrets.TOKEN"),
        ({"kms_keys": [KEY]}, "job.kms_keys"),
        ({"container": "image:1"}, "job.container"),
        ({"data": "s3://other/data/", "dataset": None}, "job.data"),
        ({"model": "s3://other/model/"}, "job.model"),
    ],
)
def test_job_that_needs_an_update_is_refused(job: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=rf"{key} = .*Apply it first: trainyard up -s"):
        create_manifest(MANIFEST, settings(**job), None)


def test_job_with_a_kms_key_of_the_deployed_stack_is_accepted() -> None:
    deployed = MANIFEST.model_copy(update={"job": MANIFEST.job.model_copy(update={"kms_keys": (KEY,)})})
    assert create_manifest(deployed, settings(kms_keys=[KEY]), None).job.kms_keys == (KEY,)


def test_source_is_uploaded_once(account: EmulatedAws) -> None:
    created = clusters.create_cluster(REGION)
    cluster, archive = Cluster(created.stack, REGION), pack({"train.py": Entry(b"pass")})
    upload_source(cluster, archive)
    calls = len(account.journal())
    upload_source(cluster, archive)
    assert created.staging.read(job_source_key(archive.sha256)) == archive.data
    assert "PutObject" not in {entry.operation for entry in account.journal()[calls:]}
