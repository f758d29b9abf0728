"""Bad input ends with one clear message and status 2, before anything is made."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.conftest import clean_environment, write_stack

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"instance_typ": "c7i.xlarge"}, "trainyard:cluster.instance_typ = 'c7i.xlarge': no such key"),
    "wrong type": ({"nodes": "two"}, "trainyard:cluster.nodes = 'two': Input should be a valid integer"),
    "unknown instance type": ({"instance_type": "p9.huge"}, "not in the hardware catalog"),
    "EFA of a type without": ({"network": {"efa": True}}, "c7i.xlarge bears no Elastic Fabric Adapter"),
    "zero nodes": ({"nodes": 0}, "trainyard:cluster.nodes = 0: Input should be greater than 0"),
    "absent source": (
        {"job": {"name": "a", "dataset": "d", "source": "nowhere", "command": ["x.py"]}},
        "trainyard:cluster.job.source = 'nowhere': no such folder",
    ),
    "CIDR too small": ({"network": {"cidr": "10.0.0.0/28"}}, "trainyard:cluster.network.cidr = '10.0.0.0/28'"),
}


def run(tree: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rehearsal", "run", *arguments],
        cwd=tree,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("case", CASES)
def test_settings(case: str, tree: Path) -> None:
    changes, message = CASES[case]
    write_stack(tree, "bad", **changes)
    done = run(tree, "--stack", "bad")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tree / "build/rehearsal/bad/aws").exists()


def test_a_stack_that_is_not_there(tree: Path) -> None:
    done = run(tree, "--stack", "nothing")
    assert done.returncode == 2
    assert "--stack = 'nothing': no such file: stacks/Pulumi.nothing.yaml" in done.stderr
    assert "local" in done.stderr


def test_a_stack_file_that_is_no_yaml(tree: Path) -> None:
    (tree / "stacks/Pulumi.broken.yaml").write_text("config: [\n")
    done = run(tree, "--stack", "broken")
    assert done.returncode == 2
    assert "Mend its YAML" in done.stderr


def test_an_account_elsewhere_is_refused(tree: Path) -> None:
    done = run(tree, "--stack", "local", AWS_ENDPOINT_URL="https://example.com")
    assert done.returncode == 2
    assert "AWS_ENDPOINT_URL = 'https://example.com': it is not on this machine's loopback" in done.stderr


def test_a_second_rehearsal_of_a_stack_says_who_holds_it(tree: Path) -> None:
    from rehearsal.locks import stack_lock

    with stack_lock(tree / "build/rehearsal/held", "held"):
        write_stack(tree, "held")
        done = run(tree, "--stack", "held")
    assert done.returncode == 2
    assert f"process {os.getpid()}" in done.stderr


def test_a_region_that_is_not_there(tree: Path) -> None:
    file = write_stack(tree, "nowhere")
    file.write_text(file.read_text().replace("us-east-1", "us-esat-1"))
    done = run(tree, "--stack", "nowhere")
    assert done.returncode == 2
    assert "aws:region = 'us-esat-1': AWS has no such region" in done.stderr


def test_a_key_that_stands_twice(tree: Path) -> None:
    text = "config:\n  aws:region: us-east-1\n  trainyard:cluster:\n    nodes: 2\n    nodes: 3\n"
    (tree / "stacks/Pulumi.twice.yaml").write_text(text)
    done = run(tree, "--stack", "twice")
    assert done.returncode == 2
    assert "nodes stands twice" in done.stderr
