"""Two rehearsals at once, by an unprivileged user in a separate clone: they are independent and deterministic."""

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
from rehearsal.hypervisor.processes import find_processes
from tests.polling import eventually
from tests.rehearsal.conftest import COPY_IGNORE, ROOT, RUN_TIMEOUT_SECONDS, CompletedRehearsal, clean_environment
from tests.rehearsal.running import find_descendants
from tests.rehearsal.test_stages import metric_lines

pytestmark = pytest.mark.slow

UNPRIVILEGED_UID = 65534
# Mounts in a private mount namespace, if another user cannot access a folder above the virtual environment: an empty
# file system over the outermost such folder, with the environment mounted at its original path.
REACHABLE = """
mkdir "$3" && mount --bind "$1" "$3" && mount -t tmpfs -o mode=755 none "$2" && mkdir -p "$1" && mount --bind "$3" "$1"
shift 3 && exec "$@"
"""


def inaccessible_folder(path: Path) -> Path | None:
    """Return the outermost folder above `path` that other users cannot enter; None if there is none."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)


@dataclass
class Clone:
    """A copy of the repository that belongs to an unprivileged user, and is the home folder of this user."""

    tree: Path
    user: int | None
    running: list["subprocess.Popen[str]"] = field(default_factory=list)
    lock_holders: list[int] = field(default_factory=list)

    def start(self, stack: str, output: IO[str]) -> "subprocess.Popen[str]":
        """Start `make rehearsal` as the user."""
        command = ["make", "-o", ".venv/.installed", "rehearsal", f"STACK={stack}"]
        process = subprocess.Popen(
            [*self._user_prefix(), *command],
            cwd=self.tree,
            env=clean_environment() | {"HOME": str(self.tree), "TMPDIR": str(self.tree.parent / "tmp")},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def _user_prefix(self) -> list[str]:
        if self.user is None:
            return []
        prefix = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--no-new-privs"]
        venv = Path(sys.prefix)
        closed = inaccessible_folder(venv)
        if closed is None:
            return prefix
        mount = self.tree.parent / "venv"
        return ["unshare", "--mount", "sh", "-c", REACHABLE, "sh", str(venv), str(closed), str(mount), *prefix]

    def folder(self, stack: str) -> Path:
        """Return the folder of a rehearsal."""
        return self.tree / "build/rehearsal" / stack

    def report(self, stack: str) -> dict[str, Any]:
        """Return the report of a rehearsal."""
        report: dict[str, Any] = json.loads((self.folder(stack) / "report.json").read_text())
        return report


@pytest.fixture(scope="module")
def clone() -> Iterator[Clone]:
    """A clone that the user can access. Its files have other times, modes and owners than this repository."""
    home = Path(tempfile.mkdtemp(prefix="trainyard-"))
    home.chmod(0o755)
    tree = home / "clone"
    shutil.copytree(ROOT, tree, ignore=COPY_IGNORE, copy_function=shutil.copyfile)
    (tree / "infra/launcher").chmod(0o755)
    (tree / ".venv").symlink_to(sys.prefix)
    (home / "tmp").mkdir()
    user = UNPRIVILEGED_UID if os.geteuid() == 0 else None
    if user is not None:
        for path in (home, *home.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
    clone = Clone(tree, user)
    yield clone
    for process in clone.running:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def pair(clone: Clone) -> dict[str, CompletedRehearsal]:
    """Two rehearsals that run at the same time, and a third of a stack whose lock is held."""
    outputs = {stack: clone.tree.parent / f"{stack}.out" for stack in ("local", "custom-job", "third")}
    with (
        outputs["local"].open("w") as first,
        outputs["custom-job"].open("w") as second,
        outputs["third"].open("w") as third,
    ):
        processes = {"local": clone.start("local", first), "custom-job": clone.start("custom-job", second)}
        lock = clone.folder("local") / "lock"
        eventually(lambda: lock.exists() and lock.read_text() != "", "the lock of the first rehearsal")
        clone.lock_holders = [
            process.pid for process in find_descendants(processes["local"].pid, "-m", "rehearsal", "run")
        ]
        processes["third"] = clone.start("local", third)
        for process in reversed(processes.values()):
            process.wait(RUN_TIMEOUT_SECONDS)
    return {
        stack: CompletedRehearsal(
            process.returncode, outputs[stack].read_text(), 0.0, {} if stack == "third" else clone.report(stack)
        )
        for stack, process in processes.items()
    }


def test_both_rehearsals_succeed(pair: dict[str, CompletedRehearsal]) -> None:
    for stack in ("local", "custom-job"):
        assert pair[stack].exit_status == 0, pair[stack].stderr
        assert pair[stack].report["ok"]
        assert pair[stack].report["leaked"] == []


def test_custom_job_has_its_own_results(clone: Clone, pair: dict[str, CompletedRehearsal]) -> None:
    result = json.loads((clone.folder("custom-job") / "results/line.json").read_text())
    assert result["world_size"] == 2
    assert result["weight"] == pytest.approx(3.0, abs=0.01)
    assert pair["custom-job"].report["last_loss"] is None


def test_report_lists_checkpoints_and_results_of_a_custom_job(pair: dict[str, CompletedRehearsal]) -> None:
    report = pair["custom-job"].report
    names = [item["name"] for item in report["checkpoints"]]
    assert names == ["epoch-0001.pt", "epoch-0002.pt", "epoch-0003.pt"]
    assert [item["name"] for item in report["results"]] == ["line.json"]
    assert not report["checkpoints_loaded"]


def test_reports_belong_to_the_unprivileged_user(clone: Clone, pair: dict[str, CompletedRehearsal]) -> None:
    if os.geteuid() != 0:
        return  # the tests already run as an unprivileged user
    assert (clone.folder("local") / "report.json").stat().st_uid == UNPRIVILEGED_UID


def test_no_processes_remain(clone: Clone, pair: dict[str, CompletedRehearsal]) -> None:
    assert [find_processes(clone.folder(stack)) for stack in ("local", "custom-job")] == [[], []]


def test_third_rehearsal_reports_the_lock_holder(clone: Clone, pair: dict[str, CompletedRehearsal]) -> None:
    """Its exit status is 2 according to make; make itself exits with 2 for any failure."""
    (holder,) = clone.lock_holders
    output = pair["third"].stderr
    assert "--stack = 'local': another rehearsal of this stack runs" in output
    assert f"(process {holder})" in output
    assert "rehearsal] Error 2\n" in output


def test_losses_are_bit_identical(
    local: CompletedRehearsal, s3: Any, clone: Clone, pair: dict[str, CompletedRehearsal]
) -> None:
    """User, clone, account, path and load differ; the seed is the same."""

    def losses(lines: list[dict[str, Any]]) -> list[tuple[int, int, str, str]]:
        return [(line["step"], line["consumed"], line["loss"].hex(), line["gradient_norm"].hex()) for line in lines]

    file = clone.folder("local") / "results/metrics.jsonl"
    unprivileged = losses([json.loads(line) for line in file.read_text().splitlines()])
    assert len(unprivileged) == local.report["steps"] == 30
    assert unprivileged == losses(metric_lines(s3, local.report))


def test_bundle_is_identical_in_another_clone(clone: Clone) -> None:
    assert pack_bundle(clone.tree).sha256 == pack_bundle(ROOT).sha256
