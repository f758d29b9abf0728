"""requirements.txt of a custom job: uv and the environments are real, the wheels are small test packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels import Wheel
from trainyard.node.environments.source import EXIT_FAILED, find_error, satisfies

ROOT = Path(__file__).parents[4]
NODE_PACKAGE = Wheel(name="node_package", version="2.0", text="LOCATION = 'the node'\n")
REQUIRED_PACKAGE = Wheel(name="required", version="1.0")
UV = (sys.executable, "-m", "uv", "--no-progress")


class Node:
    """A folder with the environment of a node and a package index (a folder of wheels)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index, self.sources = folder, folder / "wheels", folder / "sources"
        self.sources.mkdir()
        self.requirements = self.sources / "requirements.txt"
        for wheel in (NODE_PACKAGE, REQUIRED_PACKAGE, Wheel(name="node_package", version="2.1")):
            shutil.move(wheel.build(folder), self.index / f"{wheel.name}-{wheel.version}-py3-none-any.whl")
        self.python = folder / "job-venv/bin/python"
        subprocess.run([*UV, "venv", "--python", sys.executable, folder / "job-venv"], check=True)
        options = ["--no-index", "--find-links", str(self.index), "--python", str(self.python)]
        subprocess.run([*UV, "pip", "install", *options, "node_package==2.0"], check=True)

    def run(self, code: str) -> "subprocess.CompletedProcess[str]":
        """Run a Python program in place of torchrun, as the agent starts it."""
        program = [
            sys.executable,
            str(ROOT / "trainyard/node/environments/source.py"),
            str(self.requirements),
            str(self.index),
        ]
        return subprocess.run(
            [*program, str(self.python), "-c", code],
            cwd=self.sources,
            env=os.environ | {"TRAINYARD_ROOT": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def created_environments(self) -> list[Path]:
        return sorted((self.folder / "opt/trainyard/job").glob("*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "wheels").mkdir()
    return Node(tmp_path)


def test_requirements_extend_the_environment_of_the_node(node: Node) -> None:
    node.requirements.write_text("required==1.0\nnode_package>=2.0\n")
    result = node.run("import node_package, required; print(node_package.LOCATION, node_package.__file__)")
    assert result.returncode == 0, result.stderr
    output = result.stdout.splitlines()[-1]
    assert output.startswith("the node ")
    # Linked, not copied: torch takes gigabytes.
    (unchanged,) = (node.folder / "job-venv").glob("lib/*/site-packages/node_package/__init__.py")
    assert Path(output.removeprefix("the node ")).samefile(unchanged)
    assert not satisfies(node.python, node.requirements)  # the node's environment has not changed


def test_environment_is_created_once(node: Node) -> None:
    node.requirements.write_text("required==1.0\n")
    first, environments = node.run("import required"), node.created_environments()
    node.index.rename(node.folder / "moved")
    second = node.run("import required")
    assert (first.returncode, second.returncode, len(environments)) == (0, 0, 1), second.stderr
    assert node.created_environments() == environments


def test_satisfied_requirements_create_no_environment_and_need_no_index(node: Node) -> None:
    node.requirements.write_text("node_package==2.0  # comment\n")
    node.index.rename(node.folder / "moved")
    result = node.run("import sys; print(sys.executable)")
    assert (result.stdout.strip(), node.created_environments()) == (str(node.python), [])


def test_another_version_does_not_change_the_environment_of_the_node(node: Node) -> None:
    node.requirements.write_text("node_package==2.1\n")
    code = "import importlib.metadata as m; print(m.version('node_package'))"
    assert node.run(code).stdout.splitlines()[-1] == "2.1"
    unchanged = subprocess.run([node.python, "-c", code], capture_output=True, text=True, check=True)
    assert unchanged.stdout.strip() == "2.0"


def test_missing_package_is_reported_without_remaining_files(node: Node) -> None:
    node.requirements.write_text("missing==1.0\n")
    result = node.run("print('never')")
    assert result.returncode == EXIT_FAILED
    assert "never" not in result.stdout
    error = find_error(result.stdout + result.stderr)
    assert error.startswith("requirements.txt of the job: ")
    assert "missing" in error
    assert node.created_environments() == []
