"""Removal of the folders of killed accounts in build/."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rehearsal.workspace import (
    Options,
    account_folder,
    aws_environment,
    change_settings,
    parse_changes,
    read_stack,
    remove_stale_accounts,
)
from tests.problems import rejects
from trainyard.aws.clients import client
from trainyard.config import CONFIG_KEY
from trainyard.config.project import PROJECT_ROOT, read_project


def test_only_folders_of_killed_accounts_are_removed(tmp_path: Path) -> None:
    exited = subprocess.Popen(["true"])
    exited.wait()
    stale, running, stack = (account_folder(tmp_path, pid) for pid in (exited.pid, os.getpid(), exited.pid + 10**7))
    for folder in (stale, running, stack, tmp_path / "aws-training"):
        folder.mkdir()
    (stack / "lock").touch()
    remove_stale_accounts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([running, stack, tmp_path / "aws-training"])


def test_changes_replace_settings() -> None:
    raw = {"nodes": 4, "capacity": {"wait_minutes": 5}}
    changes = parse_changes(["capacity.reserve=false", "fsx.export=true", "nodes=8"])
    assert change_settings(raw, changes) == {
        "nodes": 8,
        "capacity": {"wait_minutes": 5, "reserve": False},
        "fsx": {"export": True},
    }
    assert raw["nodes"] == 4


def test_changed_length_of_a_job_is_kept_with_a_smaller_model() -> None:
    changes = parse_changes(
        ["job.train.steps=120", "job.train.evaluation.interval_steps=40", "job.train.batch_size=4096"]
    )
    settings = read_stack(Options(project=read_project(PROJECT_ROOT), stack="a100-cluster", changes=changes))[1]
    assert settings.job.train is not None
    assert (settings.job.train.steps, settings.job.train.evaluation.interval_steps) == (120, 40)
    assert settings.job.train.batch_size < 4096  # that of the smaller model


def test_clients_have_the_endpoint_of_the_current_account() -> None:
    for endpoint in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        keys = {"AWS_ACCESS_KEY_ID": f"key of {endpoint}", "AWS_SECRET_ACCESS_KEY": "b"}
        with aws_environment({"AWS_ENDPOINT_URL": endpoint, **keys}):
            s3 = client("s3", "us-east-1")
            assert s3.meta.endpoint_url == endpoint
            assert s3._request_signer._credentials.access_key == f"key of {endpoint}"


@pytest.mark.parametrize(
    "spec", ["capacity", "=1", "nodes.count=1", "nodes=[", "a..b=1", "capacity={capacity_block:{id:cr-1}}"]
)
def test_invalid_change_is_refused(spec: str) -> None:
    with rejects("invalid_change", spec):
        change_settings({"nodes": 4}, parse_changes([spec]))


def test_invalid_value_of_a_change_names_the_option() -> None:
    with rejects("int_parsing", "trainyard:cluster.nodes = 'few'", "in --set."):
        read_stack(Options(project=read_project(PROJECT_ROOT), stack="local", changes=parse_changes(["nodes=few"])))


def write_stack_file(root: Path, config: dict[str, object]) -> Options:
    cluster = {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
    (root / "Pulumi.a.yaml").write_text(yaml.safe_dump({"config": {CONFIG_KEY: cluster, **config}}))
    return Options(project=read_project(root), stack="a")


def test_default_region_is_a_substitution(tmp_path: Path) -> None:
    _, _, changes = read_stack(write_stack_file(tmp_path, {}))
    assert [change.replacement for change in changes if change.original == "aws:region"] == ["us-east-1"]


def test_region_of_the_stack_file_is_no_substitution(tmp_path: Path) -> None:
    _, _, changes = read_stack(write_stack_file(tmp_path, {"aws:region": "eu-west-1"}))
    assert "aws:region" not in [change.original for change in changes]


def test_unknown_key_of_the_project_is_refused(tmp_path: Path) -> None:
    with rejects("extra_forbidden", "trainyard:clutser = 1: unknown key. Did you mean trainyard:cluster? "):
        read_stack(write_stack_file(tmp_path, {"trainyard:clutser": 1, "aws:region": "us-east-1"}))


def test_misspelled_key_of_the_provider_is_refused(tmp_path: Path) -> None:
    with rejects("extra_forbidden", "aws:regon = 'us-east-1'", "Did you mean aws:region? "):
        read_stack(write_stack_file(tmp_path, {"aws:regon": "us-east-1"}))


def test_misspelled_section_of_a_change_names_the_option(tmp_path: Path) -> None:
    options = replace(write_stack_file(tmp_path, {}), changes=parse_changes(["trainyard:cluster.job.trian.steps=5"]))
    with rejects("extra_forbidden", "trainyard:cluster.job.trian", "Did you mean train? ", "in --set"):
        read_stack(options)
