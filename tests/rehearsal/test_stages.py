"""A whole rehearsal from preview to destroy: report, files, S3 objects, and other jobs on the same account."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.engine.base import UPDATES
from rehearsal.hypervisor.processes import find_processes
from tests.rehearsal.conftest import ROOT, CompletedRehearsal, Rehearse, run_rehearsal

KEYS = {
    *("ok", "errors", "stack", "backend", "engine", "run", "nodes", "processes_per_node", "resources_created"),
    *("resources_deleted", "retained", "images", "leaked", "phases", "first_loss", "last_loss", "steps", "checkpoints"),
    *("checkpoints_loaded", "results", "results_uri", "objects", "substitutions", "not_rehearsed", "billed"),
    *("unused_reservations", "faults", "capacity_attempts", "faults_without_effect", "injections"),
    *("recoveries", "replacements"),
}


def objects(s3: Any, report: dict[str, Any], folder: str) -> list[str]:
    """Return the contents of the run's S3 objects in a folder."""
    bucket, prefix = report["results_uri"].removeprefix("s3://").split("/", 1)
    prefix = prefix.removesuffix("results/") + folder
    keys = [
        item["Key"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for item in page.get("Contents", [])
    ]
    return [s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys]


def metric_lines(s3: Any, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metric lines of the run, sorted by step."""
    lines = [json.loads(line) for chunk in objects(s3, report, "metrics/") for line in chunk.splitlines()]
    return sorted(lines, key=lambda line: (line["step"], line["attempt"]))


def local_train_settings() -> dict[str, Any]:
    """Return job.train of the stack file `local`."""
    config = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())["config"]
    train: dict[str, Any] = config["trainyard:cluster"]["job"]["train"]
    return train


def test_rehearsal_succeeds(local: CompletedRehearsal) -> None:
    assert local.exit_status == 0, local.stderr
    assert local.report["ok"]
    assert local.report["errors"] == []
    assert (local.report["nodes"], local.report["processes_per_node"]) == (2, 2)


def test_report_has_all_keys(local: CompletedRehearsal, tree: Path) -> None:
    assert local.report.keys() == KEYS
    assert json.loads((tree / "build/rehearsal/local/report.json").read_text()) == local.report


def test_loss_decreases(local: CompletedRehearsal) -> None:
    assert local.report["last_loss"] < 0.8 * local.report["first_loss"]


def test_reported_losses_equal_the_metric_lines_in_s3(local: CompletedRehearsal, s3: Any) -> None:
    lines = metric_lines(s3, local.report)
    assert [line["step"] for line in lines] == list(range(1, local.report["steps"] + 1))
    assert (lines[0]["loss"], lines[-1]["loss"]) == (local.report["first_loss"], local.report["last_loss"])


def test_all_created_resources_are_deleted_or_retained(local: CompletedRehearsal) -> None:
    report = local.report
    retained = [item for item in report["retained"] if item.startswith("aws:")]
    assert report["resources_created"] == report["resources_deleted"] + len(retained)
    assert report["leaked"] == []
    assert all("trainyard-data" in item or item.startswith("aws:kms/key:Key ") for item in retained)


def test_report_has_all_phases(local: CompletedRehearsal) -> None:
    expected = {
        "account",
        "preview",
        "resources",
        "dataset",
        "head",
        "workers",
        "startup",
        "training",
        "results",
        "destroy",
    }
    assert expected <= local.report["phases"].keys()
    assert all(seconds >= 0 for seconds in local.report["phases"].values())


def test_phases_add_up_to_the_total_time(local: CompletedRehearsal) -> None:
    overhead_seconds = 20.0  # start and exit of Python on a busy machine
    assert 0 <= local.seconds - sum(local.report["phases"].values()) < overhead_seconds


def test_checkpoints_and_results_are_downloaded(local: CompletedRehearsal, tree: Path) -> None:
    assert len(local.report["checkpoints"]) == 3
    assert local.report["checkpoints_loaded"]
    assert {"results.json", "tensorboard"} <= {item["name"] for item in local.report["results"]}
    results = json.loads((tree / "build/rehearsal/local/results/results.json").read_text())
    assert results["last_loss"] == local.report["last_loss"]
    assert list((tree / "build/rehearsal/local/results").glob("tensorboard/*tfevents*"))


def test_skipped_roles_are_not_rehearsed(local: CompletedRehearsal) -> None:
    skipped = {item["subject"] for item in local.report["not_rehearsed"]}
    assert {"role base on a head", "role base on a worker", UPDATES} <= skipped
    assert not any("efa" in item for item in skipped)  # the stack has no EFA on AWS either


def test_page_has_phases_nodes_and_losses(local: CompletedRehearsal, tree: Path) -> None:
    page = (tree / "build/rehearsal/local/report.html").read_text()
    assert page.count('role="img"') == 3
    assert page.count(": done</text>") == local.report["nodes"]
    assert [name for name in local.report["phases"] if f">{name.replace('_', ' ')} " not in page] == []
    assert page.count('class="mark validation"') == 3


def test_no_processes_remain(local: CompletedRehearsal, tree: Path) -> None:
    assert find_processes(tree / "build/rehearsal/local") == []


@pytest.mark.slow
def test_job_resume_continues_from_the_named_run(local: CompletedRehearsal, rehearse: Rehearse, s3: Any) -> None:
    train = {**local_train_settings(), "steps": 31, "batch_size": 4}
    job = {"merge": True, "name": "resumed", "processes_per_node": 1, "resume": local.report["run"], "train": train}
    ended = rehearse("local", nodes=1, job=job)
    assert ended.exit_status == 0, ended.stderr
    assert "/ exists" in ended.stderr  # the dataset of the main rehearsal
    lines = metric_lines(s3, ended.report)
    assert [line["step"] for line in lines] == [31]
    assert lines[0]["loss"] < 0.8 * local.report["first_loss"]


@pytest.mark.slow
def test_failed_job_is_reported_with_its_traceback(rehearse: Rehearse, tree: Path) -> None:
    source = tree / "examples/raises"
    source.mkdir()
    (source / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "def step(number):\n"
        "    if number == 3 and dist.get_rank() == 1:\n"
        "        raise ValueError('bad value at step 3')\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "for number in range(1, 10):\n"
        "    step(number)\n"
    )
    job = {"name": "raises", "source": "examples/raises", "command": ["train.py"]}
    ended = rehearse("raises", job=job)
    assert ended.exit_status == 1
    assert not ended.report["ok"]
    (error,) = ended.report["errors"]
    assert "rank 1 (local rank 0 of i-" in error
    assert "before: ValueError: bad value at step 3" in error
    assert "line 5, in step" in error
    assert error in ended.stderr
    assert ended.report["leaked"] == []
    assert find_processes(tree / "build/rehearsal/raises") == []
    page = (tree / "build/rehearsal/raises/report.html").read_text()
    assert 'class="mark failed"' in page
    assert "bad value at step 3" in page


def test_preview_creates_no_resource(tree: Path) -> None:
    ended = run_rehearsal(tree, "--preview", "--stack", "a100-cluster", timeout_seconds=60)
    assert ended.exit_status == 0, ended.stderr
    assert "on AWS 88.52 USD per hour" in ended.stderr
    assert (ended.report["resources_created"], ended.report["leaked"]) == (0, [])
    assert ended.report["phases"].keys() == {"account", "preview", "destroy", "audit"}
