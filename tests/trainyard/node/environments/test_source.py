"""A user's requirements.txt on a node: uv and the environments are real, what is installed are small stand-ins."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels import Wheel
from trainyard.node.environments.source import FAILED, complaint, has_all

ROOT = Path(__file__).parents[4]
NODES_OWN = Wheel(name="nodes_own", version="2.0", text="PLACE = 'the node'\n")
WANTED = Wheel(name="wanted", version="1.0")
UV = (sys.executable, "-m", "uv", "--no-progress")


class Node:
    """A folder with the environment that nodes make, and the index of the stack as a folder of wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index, self.sources = folder, folder / "wheels", folder / "sources"
        self.sources.mkdir()
        self.list = self.sources / "requirements.txt"
        for wheel in (NODES_OWN, WANTED, Wheel(name="nodes_own", version="2.1")):
            shutil.move(wheel.build(folder), self.index / f"{wheel.name}-{wheel.version}-py3-none-any.whl")
        self.python = folder / "job-venv/bin/python"
        subprocess.run([*UV, "venv", "--python", sys.executable, folder / "job-venv"], check=True)
        options = ["--no-index", "--find-links", str(self.index), "--python", str(self.python)]
        subprocess.run([*UV, "pip", "install", *options, "nodes_own==2.0"], check=True)

    def run(self, code: str) -> "subprocess.CompletedProcess[str]":
        """What torchrun would be, as the agent starts it: in the folder of the sources."""
        program = [sys.executable, str(ROOT / "trainyard/node/environments/source.py"), str(self.list), str(self.index)]
        return subprocess.run(
            [*program, str(self.python), "-c", code],
            cwd=self.sources,
            env=os.environ | {"TRAINYARD_ROOT": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def made(self) -> list[Path]:
        return sorted((self.folder / "opt/trainyard/job").glob("*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "wheels").mkdir()
    return Node(tmp_path)


def test_what_is_asked_for_is_installed_beside_what_the_node_has(node: Node) -> None:
    node.list.write_text("wanted==1.0\nnodes_own>=2.0\n")
    ended = node.run("import nodes_own, wanted; print(nodes_own.PLACE, nodes_own.__file__)")
    assert ended.returncode == 0, ended.stderr
    place = ended.stdout.splitlines()[-1]
    assert place.startswith("the node ")
    # Not copied: of torch there would be gigabytes.
    (before,) = (node.folder / "job-venv").glob("lib/*/site-packages/nodes_own/__init__.py")
    assert Path(place.removeprefix("the node ")).samefile(before)
    assert not has_all(node.python, node.list)  # the node's own is as it was


def test_it_is_made_once(node: Node) -> None:
    node.list.write_text("wanted==1.0\n")
    first, made = node.run("import wanted"), node.made()
    node.index.rename(node.folder / "away")
    second = node.run("import wanted")
    assert (first.returncode, second.returncode, len(made)) == (0, 0, 1), second.stderr
    assert node.made() == made


def test_where_all_is_there_nothing_is_made_and_nobody_asked(node: Node) -> None:
    node.list.write_text("nodes_own==2.0  # why\n")
    node.index.rename(node.folder / "away")
    ended = node.run("import sys; print(sys.executable)")
    assert (ended.stdout.strip(), node.made()) == (str(node.python), [])


def test_another_version_than_the_nodes_leaves_the_nodes_alone(node: Node) -> None:
    node.list.write_text("nodes_own==2.1\n")
    show = "import importlib.metadata as m; print(m.version('nodes_own'))"
    assert node.run(show).stdout.splitlines()[-1] == "2.1"
    before = subprocess.run([node.python, "-c", show], capture_output=True, text=True, check=True)
    assert before.stdout.strip() == "2.0"


def test_what_no_index_has_is_told_and_leaves_nothing(node: Node) -> None:
    node.list.write_text("nowhere==1.0\n")
    ended = node.run("print('never')")
    assert ended.returncode == FAILED
    assert "never" not in ended.stdout
    told = complaint(ended.stdout + ended.stderr)
    assert told.startswith("requirements.txt of the job: ")
    assert "nowhere" in told
    assert node.made() == []
