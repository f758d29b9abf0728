"""The whole road, start to destroyed."""

import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal.hypervisor.processes import marked
from tests.rehearsal.conftest import Ended, Rehearse

KEYS = {
    *("ok", "errors", "stack", "backend", "engine", "run", "nodes", "processes_per_node", "resources_created"),
    *("resources_deleted", "retained", "images", "leaked", "phases", "first_loss", "last_loss", "steps", "checkpoints"),
    *("results_uri", "objects", "scaled", "not_rehearsed", "billed", "faults"),
}


def objects(s3: Any, report: dict[str, Any], below: str) -> list[str]:
    bucket, prefix = report["results_uri"].removeprefix("s3://").split("/", 1)
    prefix = prefix.removesuffix("results/") + below
    keys = [
        item["Key"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for item in page.get("Contents", [])
    ]
    return [s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys]


def metric_lines(s3: Any, report: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [json.loads(line) for chunk in objects(s3, report, "metrics/") for line in chunk.splitlines()]
    return sorted(lines, key=lambda line: (line["step"], line["attempt"]))


def test_it_ends_well(local: Ended) -> None:
    assert local.status == 0, local.told
    assert local.report["ok"]
    assert local.report["errors"] == []
    assert (local.report["nodes"], local.report["processes_per_node"]) == (2, 2)


def test_the_report_has_its_keys(local: Ended, tree: Path) -> None:
    assert local.report.keys() == KEYS
    assert json.loads((tree / "build/rehearsal/local/report.json").read_text()) == local.report


def test_the_loss_went_down(local: Ended) -> None:
    assert local.report["last_loss"] < 0.8 * local.report["first_loss"]


def test_the_figures_are_those_in_s3(local: Ended, s3: Any) -> None:
    lines = metric_lines(s3, local.report)
    assert [line["step"] for line in lines] == list(range(1, local.report["steps"] + 1))
    assert (lines[0]["loss"], lines[-1]["loss"]) == (local.report["first_loss"], local.report["last_loss"])


def test_everything_made_is_deleted_or_retained(local: Ended) -> None:
    report = local.report
    own = [item for item in report["retained"] if item.startswith("aws:")]
    assert report["resources_created"] == report["resources_deleted"] + len(own)
    assert report["leaked"] == []
    assert all("trainyard-data" in item or item.startswith("aws:kms/key:Key ") for item in own)


def test_the_phases_are_the_roads_own(local: Ended) -> None:
    wanted = {
        "account",
        "preview",
        "resources",
        "dataset",
        "head",
        "workers",
        "bring_up",
        "training",
        "results",
        "destroy",
    }
    assert wanted <= local.report["phases"].keys()
    assert all(seconds >= 0 for seconds in local.report["phases"].values())


def test_the_phases_sum_up_to_the_wall_time(local: Ended) -> None:
    outside = 20.0  # seconds of Python's start and end, on a loaded machine
    assert 0 <= local.seconds - sum(local.report["phases"].values()) < outside


def test_checkpoints_and_results_came_home(local: Ended, tree: Path) -> None:
    assert len(local.report["checkpoints"]) == 3
    results = json.loads((tree / "build/rehearsal/local/results/results.json").read_text())
    assert results["last_loss"] == local.report["last_loss"]
    assert list((tree / "build/rehearsal/local/results").glob("tensorboard/*tfevents*"))


def test_what_was_not_rehearsed_is_what_the_nodes_left_out(local: Ended) -> None:
    left_out = {item["what"] for item in local.report["not_rehearsed"]}
    assert {"role base on a head", "role base on a worker"} <= left_out
    assert not any("efa" in item for item in left_out)  # this stack's nodes have none on AWS either


def test_the_page_shows_phases_nodes_and_losses(local: Ended, tree: Path) -> None:
    page = (tree / "build/rehearsal/local/report.html").read_text()
    assert page.count('role="img"') == 3
    assert page.count(": done</text>") == local.report["nodes"]
    assert [name for name in local.report["phases"] if f">{name.replace('_', ' ')} " not in page] == []
    assert page.count('class="mark held-out"') == 3


def test_nothing_runs_afterwards(local: Ended, tree: Path) -> None:
    assert marked(tree / "build/rehearsal/local") == []


def test_another_job_on_the_same_data_starts_anew(local: Ended, rehearse: Rehearse, s3: Any) -> None:
    train = {"steps": 1, "batch_size": 4}
    job = {"merge": True, "name": "another", "processes_per_node": 1, "train": train}
    ended = rehearse("local", nodes=1, job=job)
    assert ended.status == 0, ended.told
    assert "is there" in ended.told  # the dataset of the first
    assert ended.report["leaked"] == []
    assert [line["step"] for line in metric_lines(s3, ended.report)] == [1]


def test_job_resume_goes_on_from_the_named_run(local: Ended, rehearse: Rehearse, s3: Any) -> None:
    train = {"steps": 61, "batch_size": 4}
    job = {"merge": True, "name": "resumed", "processes_per_node": 1, "resume": local.report["run"], "train": train}
    ended = rehearse("local", nodes=1, job=job)
    assert ended.status == 0, ended.told
    lines = metric_lines(s3, ended.report)
    assert [line["step"] for line in lines] == [61]
    assert lines[0]["loss"] < 0.8 * local.report["first_loss"]


def test_a_job_that_raises_ends_with_its_traceback(rehearse: Rehearse, tree: Path) -> None:
    source = tree / "examples/raises"
    source.mkdir()
    (source / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "def step(number):\n"
        "    if number == 3 and dist.get_rank() == 1:\n"
        "        raise ValueError('no good at step 3')\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "for number in range(1, 10):\n"
        "    step(number)\n"
    )
    job = {"name": "raises", "dataset": "none", "source": "examples/raises", "command": ["train.py"]}
    ended = rehearse("raises", job=job)
    assert ended.status == 1
    assert not ended.report["ok"]
    (error,) = ended.report["errors"]
    assert "rank 1 on i-" in error
    assert "failed twice the same way: ValueError: no good at step 3" in error
    assert "line 5, in step" in error
    assert error in ended.told
    assert ended.report["leaked"] == []
    assert marked(tree / "build/rehearsal/raises") == []
    page = (tree / "build/rehearsal/raises/report.html").read_text()
    assert 'class="mark bad"' in page
    assert "no good at step 3" in page


def test_a_users_own_job_takes_the_same_road(rehearse: Rehearse, tree: Path) -> None:
    job = {"name": "line", "dataset": "none", "source": "examples/own-job", "command": ["train.py", "--epochs", "2"]}
    ended = rehearse("own-job", job=job)
    assert ended.status == 0, ended.told
    result = json.loads((tree / "build/rehearsal/own-job/results/line.json").read_text())
    assert result["world_size"] == 2
    assert result["weight"] == pytest.approx(3.0, abs=0.01)
    assert ended.report["last_loss"] is None
    assert ended.report["objects"]["checkpoints"] == 2
