"""Fixtures that run whole rehearsals as a user does: in a copy of the repository, in a shared emulated account."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import boto3
import pytest
import yaml

from tests.polling import eventually

ROOT = Path(__file__).parents[2]
COPY_IGNORE = shutil.ignore_patterns(".venv", ".git", "build", "__pycache__", ".*_cache", "tests")
RUN_TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class CompletedRehearsal:
    """The result of a rehearsal process. `report` is empty if it wrote none."""

    exit_status: int
    stderr: str
    seconds: float
    report: dict[str, Any]


Rehearse = Callable[..., CompletedRehearsal]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository."""
    copy = tmp_path_factory.mktemp("clone") / "trainyard"
    shutil.copytree(ROOT, copy, ignore=COPY_IGNORE)
    return copy


CHECKS = {"Validate the manifest and the operating system", "Verify the virtual environment"}


@pytest.fixture(scope="session")
def tree_without_checks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository whose playbooks skip their checks, so that nodes start in half the time."""
    copy = tmp_path_factory.mktemp("quick") / "trainyard"
    shutil.copytree(ROOT, copy, ignore=COPY_IGNORE)
    for playbook in (copy / "playbooks/head.yml", copy / "playbooks/node.yml"):
        (play,) = yaml.safe_load(playbook.read_text())
        play["tasks"] = [task for task in play["tasks"] if task["name"] not in CHECKS]
        playbook.write_text(yaml.safe_dump([play]))
    tasks = copy / "playbooks/roles/pytorch/tasks/main.yml"
    remaining = [task for task in yaml.safe_load(tasks.read_text()) if task["name"] not in CHECKS]
    tasks.write_text(yaml.safe_dump(remaining))
    return copy


@pytest.fixture(scope="session")
def shared(tree: Path) -> Iterator[dict[str, str]]:
    """The environment of an account that several rehearsals share. No test may advance its clock."""
    with start_account(tree) as environment:
        yield environment


@contextmanager
def start_account(tree: Path, *options: str) -> Iterator[dict[str, str]]:
    """Run `python -m rehearsal aws --json` with more options. Yields the environment variables that it prints."""
    with tempfile.TemporaryFile() as out:
        command = [sys.executable, "-m", "rehearsal", "aws", "--json", *options]
        process = subprocess.Popen(command, cwd=tree, stdout=out, env=clean_environment())

        def stdout() -> str:
            return os.pread(out.fileno(), 2**16, 0).decode()  # a seek would also move the offset of the writer

        try:
            eventually(lambda: "\n" in stdout() or process.poll() is not None, "the environment of an account")
            assert process.poll() is None, "the emulated AWS exited before it printed its environment"
            yield json.loads(stdout())
        finally:
            process.terminate()
            try:
                exit_status = process.wait(20)
            finally:
                process.kill()
                process.wait()
    assert exit_status == 0


def clean_environment() -> dict[str, str]:
    """Return the environment without variables of AWS and of a `make` that runs the tests."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "MAKE", "MFLAGS", "REHEARSAL_"))
    }


@pytest.fixture(scope="session")
def rehearse(tree: Path, shared: dict[str, str]) -> Rehearse:
    """A function that runs a rehearsal of `stack` with the settings of `local` and `changes` of top-level keys.

    It restores the stack files of the repository, because other tests rehearse them unchanged.
    """

    def run(stack: str, **changes: Any) -> CompletedRehearsal:
        file = stack_file(tree, stack)
        original = file.read_bytes() if file.exists() else None
        write_stack(tree, stack, **changes)
        try:
            return run_rehearsal(tree, "--stack", stack, environment=shared)
        finally:
            if original is not None:
                file.write_bytes(original)

    return run


def run_rehearsal(
    tree: Path,
    *arguments: str,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    timeout_seconds: float = RUN_TIMEOUT_SECONDS,
) -> CompletedRehearsal:
    """Run `python -m rehearsal run` with arguments until it exits. `prefix`: command that runs this command."""
    start = time.monotonic()
    process = subprocess.run(
        [*prefix, sys.executable, "-m", "rehearsal", "run", "--json", *arguments],
        cwd=tree,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    report = json.loads(process.stdout) if process.stdout.strip() else {}
    return CompletedRehearsal(process.returncode, process.stderr, time.monotonic() - start, report)


def capacity_attempts_for(report: dict[str, Any], instance_type: str) -> list[tuple[str, str, int, str | None]]:
    """Return kind, zone, granted instances and error code of each request for the type."""
    return [
        (attempt["kind"], attempt["zone"], attempt["granted"], attempt["error_code"])
        for attempt in report["capacity_attempts"]
        if attempt["type"] == instance_type
    ]


def stack_file(tree: Path, stack: str) -> Path:
    """Return the path of a stack file."""
    return tree / "stacks" / f"Pulumi.{stack}.yaml"


def write_stack(tree: Path, stack: str, **changes: Any) -> Path:
    """Write a stack file with the settings of `local`, changed at the top level.

    A changed object replaces the original, or is merged into it if it has the key `merge`. Returns the path.
    """
    local = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())
    settings = local["config"]["trainyard:cluster"]
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict) and value.get("merge", False):
            settings[key] = {**settings[key], **{name: item for name, item in value.items() if name != "merge"}}
        else:
            settings[key] = value
    file = stack_file(tree, stack)
    file.write_text(yaml.safe_dump(local))
    return file


@pytest.fixture(scope="session")
def s3(shared: dict[str, str]) -> Any:
    """An S3 client of the shared account."""
    return s3_client(shared)


def s3_client(environment: Mapping[str, str]) -> Any:
    """Return an S3 client of an account. `environment`: as `start_account` yields it."""
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture(scope="session")
def local(rehearse: Rehearse) -> CompletedRehearsal:
    """The main rehearsal, as `make rehearsal` runs it."""
    return rehearse("local")
