"""Whole rehearsals on booted nodes: `make rehearsal BACKEND=nspawn`."""

from pathlib import Path

import psutil
import pytest

from rehearsal.engine.base import UPDATES
from rehearsal.faults import format_fault
from rehearsal.hypervisor.nspawn.backend import namespace_suffix
from rehearsal.hypervisor.nspawn.network import NETNS_FOLDER
from rehearsal.profiles import profile_faults
from tests.rehearsal.conftest import CompletedRehearsal, run_rehearsal

pytestmark = pytest.mark.booted
# Role -> reason in the report why a machine without this hardware or service skips it.
HARDWARE = {
    "cuda": "this machine has no GPU and nodes cannot reach NVIDIA's package repository",
    "efa": "this machine has no EFA device",
    "lustre": "the emulated AWS has no FSx for Lustre server and the kernel has no Lustre client",
    "nvidia_driver": "this machine has no GPU",
    "nvme": "a container has no instance store",
}
UNLISTED = "eventual-consistency,seconds=10.0"


@pytest.fixture(scope="module")
def local(tree: Path) -> CompletedRehearsal:
    """A rehearsal of the stack local with the nspawn backend and a baked image."""
    return run_rehearsal(tree, "--stack", "local", "--backend", "nspawn", "--bake")


def test_rehearsal_succeeds(local: CompletedRehearsal) -> None:
    assert (local.exit_status, local.report.get("errors"), local.report.get("backend")) == (0, [], "nspawn"), (
        local.stderr
    )
    assert local.report["last_loss"] < 0.8 * local.report["first_loss"]


def test_stack_without_gpus_is_rehearsed_completely(local: CompletedRehearsal) -> None:
    assert [part["subject"] for part in local.report["not_rehearsed"]] == [UPDATES]


def test_baked_image_is_retained(local: CompletedRehearsal, tree: Path) -> None:
    image, snapshot = local.report["images"]
    assert snapshot.startswith("snap-")
    assert f"image: {image}" in (tree / "build/rehearsal/local/baked.yaml").read_text()


def test_no_machine_remains(local: CompletedRehearsal, tree: Path) -> None:
    folder = tree / "build/rehearsal/local"
    suffix = namespace_suffix(folder)
    assert [path.name for path in NETNS_FOLDER.glob(f"*{suffix}*")] == []
    assert [item for item in psutil.process_iter(["cmdline"]) if suffix in " ".join(item.info["cmdline"] or ())] == []
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert list(Path("/sys/fs/cgroup").glob(f"**/*{suffix}*")) == []


def test_gpu_stack_skips_only_roles_that_need_its_hardware(tree: Path) -> None:
    """EC2 does not list a new node at first, which a booted node must survive, too."""
    ended = run_rehearsal(tree, "--stack", "a100-cluster", "--backend", "nspawn", "--nodes", "1", "--fault", UNLISTED)
    assert (ended.exit_status, ended.report.get("errors")) == (0, []), ended.stderr
    assert ended.report["faults"] == [*map(format_fault, profile_faults("realistic")), UNLISTED]
    skipped = {part["subject"].split()[1]: part["reason"] for part in ended.report["not_rehearsed"][1:]}
    assert skipped == HARDWARE
