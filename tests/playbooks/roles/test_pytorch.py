"""The role `pytorch` on a booted machine: uv and the package index are real, the packages are stand-ins for torch."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.file_server import FileServer
from tests.machines import ROOT, BootedMachine, PlaybookResult, boot_machine
from tests.polling import eventually
from tests.wheels import STUB_WHEELS, Wheel, lock_text

pytestmark = pytest.mark.booted

BUNDLE = "/opt/bundle"
VENV = "/opt/trainyard/job-venv"
CODE = [
    *(ROOT / "trainyard").glob("*.py"),
    *(ROOT / "trainyard/node").glob("*.py"),
    *(ROOT / "trainyard/node/environments").glob("*.py"),
]
NEWER = replace(STUB_WHEELS[0], version="2.16.0")


class Node:
    """A machine with a bundle and a package index."""

    def __init__(self, machine: BootedMachine, index: FileServer, wheels: dict[Wheel, Path]) -> None:
        self.machine, self.index, self.run_script = machine, index, machine.run_script
        self.wheels = wheels

    def write_requirements(self, *stubs: Wheel, lock: str = "") -> None:
        """Write the requirements and their lock: these packages, and the lines `lock`."""
        names = "".join(f"{stub.name}=={stub.version}\n" for stub in stubs)
        self.machine.write_file(f"{BUNDLE}/trainer/requirements.in", names)
        text = lock_text(self.wheels[stub] for stub in stubs) + lock
        self.machine.write_file(f"{BUNDLE}/trainer/requirements.txt", text)

    def run_role(self, **variables: Any) -> PlaybookResult:
        return self.machine.run_role(
            "pytorch", pytorch_bundle=BUNDLE, pytorch_index=f"{self.index.url}/simple", **variables
        )


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("pytorch")
    code = {f"{BUNDLE}/{path.relative_to(ROOT)}": path.read_text() for path in CODE}
    with boot_machine(folder / "node", code) as machine:
        wheels = {stub: stub.build(folder / "index") for stub in (*STUB_WHEELS, NEWER)}
        index = FileServer(folder / "index", machine.network)
        index.start()
        node = Node(machine, index, wheels)
        node.write_requirements(*STUB_WHEELS)
        yield node
        index.close()


def test_the_environment_is_created_once_from_the_pinned_requirements(node: Node) -> None:
    first, second = node.run_role(), node.run_role()
    assert first.exit_code == 0, first.output
    assert first.changed_tasks == ("pytorch : Create the virtual environment from the bundle's lock",)
    assert (second.exit_code, second.changed_tasks) == (0, ())
    assert node.run_script(f"{VENV}/bin/python -c 'import torch, sys; print(sys.prefix)'").strip() == VENV
    assert node.run_script(f"ls {VENV}/lib/python3.11/site-packages/torch/__pycache__").strip().endswith(".pyc")


def test_changed_requirements_and_a_damaged_environment_create_a_new_environment(node: Node) -> None:
    assert node.run_role().exit_code == 0
    node.write_requirements(NEWER, *STUB_WHEELS[1:])
    assert node.run_role().exit_code == 0
    version = f"{VENV}/bin/python -c 'from importlib.metadata import version; print(version(\"torch\"))'"
    assert node.run_script(version).strip() == "2.16.0"
    node.run_script(f"rm {VENV}/complete {VENV}/bin/python")
    again = node.run_role()
    assert (again.exit_code, len(again.changed_tasks)) == (0, 1)


def test_an_environment_in_use_is_not_removed(node: Node) -> None:
    assert node.run_role().exit_code == 0
    folder = node.run_script(f"readlink {VENV}").strip()
    # A running process is recognized by its mapped files: torch's libraries, here a stand-in.
    node.run_script(f"cp /usr/lib/x86_64-linux-gnu/libm.so.6 {folder}/lib/")
    load = f"import ctypes, time; ctypes.CDLL('{folder}/lib/libm.so.6'); time.sleep(600)"
    node.run_script(f'systemd-run -q --unit job {folder}/bin/python -c "{load}"')
    eventually(lambda: bool(node.run_script("grep -l venvs /proc/[0-9]*/maps || true")), "the library in use")
    node.write_requirements(NEWER, *STUB_WHEELS[1:])
    assert node.run_role().exit_code == 0
    assert node.run_script(f"readlink {VENV}").strip() != folder
    assert node.run_script(f"ls {folder}/complete")
    node.run_script("systemctl stop job")
    assert node.run_role().exit_code == 0
    assert node.machine.machine.run_command("test", "-e", folder).returncode != 0


def test_a_package_missing_from_the_index_is_reported(node: Node) -> None:
    node.write_requirements(*STUB_WHEELS, lock=f"absent==3.1 --hash=sha256:{64 * '0'}\n")
    failed = node.run_role()
    assert failed.exit_code != 0
    assert "absent" in failed.failure
    assert node.run_script("find /opt/trainyard/venvs -name complete") == ""


def test_a_wheel_with_another_hash_than_the_lock_is_not_installed(node: Node) -> None:
    replace(STUB_WHEELS[0], text="import os  # not the file of the lock\n").build(
        node.wheels[STUB_WHEELS[0]].parents[2]
    )
    failed = node.run_role()
    assert failed.exit_code != 0
    assert "hash" in failed.failure.lower()
    assert node.run_script("find /opt/trainyard/venvs -name complete") == ""


def test_an_environment_of_the_image_is_kept_and_verified(node: Node) -> None:
    assert node.run_role().exit_code == 0
    node.run_script(f"cp -a {VENV}/ /opt/image-venv")
    requests = len(node.index.requested_paths())
    kept = node.run_role(pytorch_venv="/opt/image-venv")
    assert (kept.exit_code, kept.changed_tasks, len(node.index.requested_paths())) == (0, (), requests)
    node.write_requirements(NEWER, *STUB_WHEELS[1:])
    assert "torch is 2.15.0, not 2.16.0" in node.run_role(pytorch_venv="/opt/image-venv").failure


def test_fewer_usable_gpus_than_the_instance_type_has_are_reported(node: Node) -> None:
    assert "torch can use 0 GPUs, but the instance type has 8" in node.run_role(pytorch_gpus=8).failure
