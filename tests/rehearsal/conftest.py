"""Whole rehearsals: in a copy of the tree, in one emulated account that stays, as a user would run them."""

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
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "build", "__pycache__", ".*_cache", "tests")
RUN_SECONDS = 900


@dataclass(frozen=True)
class Ended:
    """A rehearsal that has ended."""

    status: int
    told: str
    seconds: float
    report: dict[str, Any]


Rehearse = Callable[..., Ended]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone holds."""
    copy = tmp_path_factory.mktemp("clone") / "trainyard"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    return copy


CHECKS = {"Check the manifest", "Look whether it is whole"}


@pytest.fixture(scope="session")
def quick_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose plays leave out their checks: nodes come up in half the time, and are all else that they are."""
    copy = tmp_path_factory.mktemp("quick") / "trainyard"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    for play in (copy / "playbooks/head.yml", copy / "playbooks/node.yml"):
        (head,) = yaml.safe_load(play.read_text())
        head["tasks"] = [task for task in head["tasks"] if task["name"] not in CHECKS]
        play.write_text(yaml.safe_dump([head]))
    tasks = copy / "playbooks/roles/pytorch/tasks/main.yml"
    kept = [task for task in yaml.safe_load(tasks.read_text()) if task["name"] not in CHECKS]
    tasks.write_text(yaml.safe_dump(kept))
    return copy


@pytest.fixture(scope="session")
def shared(tree: Path) -> Iterator[dict[str, str]]:
    """An account that outlives single rehearsals. Nobody jumps its clock."""
    with kept_account(tree) as environment:
        yield environment


@contextmanager
def kept_account(tree: Path) -> Iterator[dict[str, str]]:
    """The environment that `python -m rehearsal aws` prints."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rehearsal", "aws"], cwd=tree, stdout=out, env=clean_environment()
        )

        def told() -> str:
            return os.pread(out.fileno(), 2**16, 0).decode()  # a seek would be the writer's too

        try:
            eventually(lambda: told().count("\n") == 8 or process.poll() is not None, "the environment of an account")
            assert process.poll() is None, "the emulated AWS ended before it told its environment"
            pairs = (line.removeprefix("export ").partition("=") for line in told().splitlines())
            yield {name: value for name, _, value in pairs}
        finally:
            process.terminate()
            try:
                status = process.wait(20)
            finally:
                process.kill()
                process.wait()
    assert status == 0


def clean_environment() -> dict[str, str]:
    """Nothing of an account, and nothing of the make that may run the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MAKE", "MFLAGS"))}


@pytest.fixture(scope="session")
def rehearse(tree: Path, shared: dict[str, str]) -> Rehearse:
    """Run one rehearsal to its end: `stack`, whose settings are those of `local` with `changes` at the top level.

    The stacks that a clone holds are as they were afterwards: other tests rehearse them as they are.
    """

    def run(stack: str, **changes: Any) -> Ended:
        file = stack_file(tree, stack)
        clones_own = file.read_bytes() if file.exists() else None
        write_stack(tree, stack, **changes)
        try:
            return rehearsed(tree, "--stack", stack, environment=shared)
        finally:
            if clones_own is not None:
                file.write_bytes(clones_own)

    return run


def rehearsed(
    tree: Path,
    *words: str,
    before: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    seconds: float = RUN_SECONDS,
) -> Ended:
    """`python -m rehearsal run` with these words, to its end; `before` is what the command stands behind."""
    began = time.monotonic()
    done = subprocess.run(
        [*before, sys.executable, "-m", "rehearsal", "run", "--json", *words],
        cwd=tree,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    report = json.loads(done.stdout) if done.stdout.strip() else {}
    return Ended(done.returncode, done.stderr, time.monotonic() - began, report)


def stack_file(tree: Path, stack: str) -> Path:
    return tree / "stacks" / f"Pulumi.{stack}.yaml"


def write_stack(tree: Path, stack: str, **changes: Any) -> Path:
    local = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())
    settings = local["config"]["trainyard:cluster"]
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict) and value.get("merge", False):
            settings[key] = {**settings[key], **{name: each for name, each in value.items() if name != "merge"}}
        else:
            settings[key] = value
    file = stack_file(tree, stack)
    file.write_text(yaml.safe_dump(local))
    return file


@pytest.fixture(scope="session")
def s3(shared: dict[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=shared["AWS_ENDPOINT_URL"],
        region_name=shared["AWS_REGION"],
        aws_access_key_id=shared["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=shared["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture(scope="session")
def local(rehearse: Rehearse) -> Ended:
    """The main rehearsal, as `make rehearsal` runs it."""
    return rehearse("local")
