"""Two rehearsals at once, by a user without rights, in a clone of his own: they do not meet, and chance has no part."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from infra.packaging.bundle import pack_bundle
from rehearsal.hypervisor.processes import marked
from tests.polling import eventually
from tests.rehearsal.conftest import LEFT_OUT, ROOT, RUN_SECONDS, Ended, clean_environment
from tests.rehearsal.running import started
from tests.rehearsal.test_stages import metric_lines

NOBODY = 65534
# Mounts of the test's own, in a namespace of its own, where a folder above the virtual environment is closed to others:
# an empty one over the outermost such folder, with the environment at its old path in it.
REACHABLE = """
mkdir "$3" && mount --bind "$1" "$3" && mount -t tmpfs -o mode=755 none "$2" && mkdir -p "$1" && mount --bind "$3" "$1"
shift 3 && exec "$@"
"""


def closed_folder(path: Path) -> Path | None:
    """The outermost folder above `path` that others can't pass."""
    above = reversed(path.parents)
    return next((folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH), None)


@dataclass
class Clone:
    """A copy of the tree that belongs to the user, whose home it is."""

    tree: Path
    user: int | None
    running: list["subprocess.Popen[str]"] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)

    def start(self, stack: str, output: IO[str]) -> "subprocess.Popen[str]":
        words = ["make", "-o", ".venv/.made", "rehearsal", f"STACK={stack}"]
        process = subprocess.Popen(
            [*self._as_user(), *words],
            cwd=self.tree,
            env=clean_environment() | {"HOME": str(self.tree), "TMPDIR": str(self.tree.parent / "tmp")},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def _as_user(self) -> list[str]:
        if self.user is None:
            return []
        words = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--no-new-privs"]
        venv = Path(sys.prefix)
        closed = closed_folder(venv)
        if closed is None:
            return words
        held = self.tree.parent / "venv"
        return ["unshare", "--mount", "sh", "-c", REACHABLE, "sh", str(venv), str(closed), str(held), *words]

    def folder(self, stack: str) -> Path:
        return self.tree / "build/rehearsal" / stack

    def report(self, stack: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(stack) / "report.json").read_text())
        return found


@pytest.fixture(scope="module")
def clone() -> Iterator[Clone]:
    """Where the user can reach it; files with other times, modes and owner than ours."""
    home = Path(tempfile.mkdtemp(prefix="trainyard-"))
    home.chmod(0o755)
    tree = home / "clone"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, copy_function=shutil.copyfile)
    (tree / "trainyard/launcher").chmod(0o755)
    (tree / ".venv").symlink_to(sys.prefix)
    (home / "tmp").mkdir()
    user = NOBODY if os.geteuid() == 0 else None
    if user is not None:
        for path in (home, *home.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
    made = Clone(tree, user)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def pair(clone: Clone) -> dict[str, Ended]:
    """Both rehearsals, started together, and a third of a stack that is held by one of them."""
    outputs = {stack: clone.tree.parent / f"{stack}.out" for stack in ("local", "own-job", "third")}
    with outputs["local"].open("w") as one, outputs["own-job"].open("w") as other, outputs["third"].open("w") as third:
        processes = {"local": clone.start("local", one), "own-job": clone.start("own-job", other)}
        lock = clone.folder("local") / "lock"
        eventually(lambda: lock.exists() and lock.read_text() != "", "the lock of the first")
        clone.holders = [one.pid for one in started(processes["local"].pid, "-m", "rehearsal", "run")]
        processes["third"] = clone.start("local", third)
        for process in reversed(processes.values()):
            process.wait(RUN_SECONDS)
    return {
        stack: Ended(
            process.returncode, outputs[stack].read_text(), 0.0, {} if stack == "third" else clone.report(stack)
        )
        for stack, process in processes.items()
    }


def test_both_end_well(pair: dict[str, Ended]) -> None:
    for stack in ("local", "own-job"):
        assert pair[stack].status == 0, pair[stack].told
        assert pair[stack].report["ok"]
        assert pair[stack].report["leaked"] == []


def test_they_ran_without_rights(clone: Clone, pair: dict[str, Ended]) -> None:
    if os.geteuid() != 0:
        return  # whoever runs the tests has none to begin with
    assert (clone.folder("local") / "report.json").stat().st_uid == NOBODY


def test_nothing_of_either_is_left(clone: Clone, pair: dict[str, Ended]) -> None:
    assert [marked(clone.folder(stack)) for stack in ("local", "own-job")] == [[], []]


def test_the_third_says_who_holds_the_lock(clone: Clone, pair: dict[str, Ended]) -> None:
    """And ends with status 2, as make tells: its own status is 2 whatever failed."""
    (holder,) = clone.holders
    told = pair["third"].told
    assert "--stack = 'local': another rehearsal of it runs" in told
    assert f": process {holder}" in told
    assert "rehearsal] Error 2\n" in told


def test_the_losses_are_equal_to_the_last_bit(local: Ended, s3: Any, clone: Clone, pair: dict[str, Ended]) -> None:
    """Another user, clone, account, path and load; the same seed."""

    def losses(lines: list[dict[str, Any]]) -> list[tuple[int, int, str, str]]:
        return [(one["step"], one["consumed"], one["loss"].hex(), one["gradient_norm"].hex()) for one in lines]

    file = clone.folder("local") / "results/metrics.jsonl"
    found = losses([json.loads(line) for line in file.read_text().splitlines()])
    assert len(found) == local.report["steps"] == 60
    assert found == losses(metric_lines(s3, local.report))


def test_the_bundle_is_the_same_in_another_clone(clone: Clone) -> None:
    assert pack_bundle(clone.tree).sha256 == pack_bundle(ROOT).sha256
