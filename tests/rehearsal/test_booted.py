"""Whole rehearsals on booted machines: `make rehearsal BACKEND=nspawn`."""

from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor.nspawn.backend import mark_of
from rehearsal.hypervisor.nspawn.network import NAMES
from tests.rehearsal.conftest import Ended, rehearsed

pytestmark = pytest.mark.booted
# Role -> of what no machine without this hardware or service can show it, as the report says.
HARDWARE = {
    "cuda": "no GPU is here, and NVIDIA's packages are not reached",
    "efa": "no EFA device is here",
    "lustre": "no FSx for Lustre is here, and the kernel has no client for it",
    "nvidia_driver": "no GPU is here",
    "nvme": "no instance store is here: a container has no disk of its own",
}


@pytest.fixture(scope="module")
def local(tree: Path) -> Ended:
    return rehearsed(tree, "--stack", "local", "--backend", "nspawn", "--bake")


def test_it_is_well(local: Ended) -> None:
    assert (local.status, local.report.get("errors"), local.report.get("backend")) == (0, [], "nspawn"), local.told
    assert local.report["last_loss"] < 0.8 * local.report["first_loss"]


def test_nothing_of_a_stack_without_gpus_is_left_out(local: Ended) -> None:
    assert local.report["not_rehearsed"] == []


def test_its_image_is_baked_and_stays(local: Ended, tree: Path) -> None:
    image, snapshot = local.report["images"]
    assert snapshot.startswith("snap-")
    assert f"image: {image}" in (tree / "build/rehearsal/local/baked.yaml").read_text()


def test_nothing_of_its_machines_stays(local: Ended, tree: Path) -> None:
    folder = tree / "build/rehearsal/local"
    mark = mark_of(folder)
    assert [path.name for path in NAMES.glob(f"*{mark}*")] == []
    assert [one for one in psutil.process_iter(["cmdline"]) if mark in " ".join(one.info["cmdline"] or ())] == []
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert list(Path("/sys/fs/cgroup").glob(f"**/*{mark}*")) == []


def test_of_a_gpu_stack_only_what_needs_its_hardware_is_left_out(tree: Path) -> None:
    ended = rehearsed(tree, "--stack", "a100-cluster", "--backend", "nspawn", "--nodes", "2")
    assert (ended.status, ended.report.get("errors")) == (0, []), ended.told
    left_out = {one["what"].split()[1]: one["why"] for one in ended.report["not_rehearsed"]}
    assert left_out == HARDWARE
