"""requirements.txt of a custom job: uv and the environments are real, the wheels are small test packages."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.aws.process import ACCOUNT
from tests.conftest import REGION
from tests.tls import create_authority, https_server
from tests.wheels import Wheel
from trainyard.aws.s3 import Bucket
from trainyard.job_source.wheels import describe_wheel
from trainyard.models.layout import wheel_key
from trainyard.models.requirements import RequirementsLock
from trainyard.node import bootstrap
from trainyard.node.bootstrap import BootstrapError
from trainyard.node.environments import certificates
from trainyard.node.environments import source as source_program
from trainyard.node.environments.source import EXIT_FAILED, find_error, install_lock, read_lock, satisfies

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
        self.variables: dict[str, str] = {}
        subprocess.run([*UV, "venv", "--python", sys.executable, folder / "job-venv"], check=True)
        options = ["--no-index", "--find-links", str(self.index), "--python", str(self.python)]
        subprocess.run([*UV, "pip", "install", *options, "node_package==2.0"], check=True)

    def run(self, code: str, index: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Install the requirements, and run a Python program in place of torchrun, as the agent does."""
        program = [
            sys.executable,
            str(ROOT / "trainyard/node/environments/source.py"),
            str(self.requirements),
            "",
            index or str(self.index),
        ]
        link = self.folder / "venv"
        installed = subprocess.run(
            [*program, str(self.python), str(link)],
            env=os.environ | {"TRAINYARD_ROOT": str(self.folder)} | self.variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if installed.returncode:
            return installed
        return subprocess.run([link / "bin/python", "-c", code], cwd=self.sources, capture_output=True, text=True)

    def created_environments(self) -> list[Path]:
        return sorted((self.folder / "opt/trainyard/job").glob("*"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(
        source_program, "find_job_user", lambda: None
    )  # packages are installed as the user of the tests
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
    assert (result.stdout.strip(), node.created_environments()) == (str(node.folder / "venv/bin/python"), [])
    assert (node.folder / "venv").readlink() == node.folder / "job-venv"


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
    error, details, is_permanent = find_error(result.stdout + result.stderr)
    command = "requirements.txt of the job: `uv pip install -r requirements.txt` failed: No solution found"
    assert error.startswith(command)
    assert "you require missing==1.0" in error
    assert (details, is_permanent) == ("", True)
    assert node.created_environments() == []


class Locked:
    """A lock of the package `required` in a bucket, for the Python of the tests."""

    def __init__(self, node: Node, bucket: Bucket) -> None:
        file = node.index / "required-1.0-py3-none-any.whl"
        wheel = describe_wheel(file)
        self.bucket, self.key = bucket, wheel_key(wheel.sha256, wheel.file)
        bucket.upload(self.key, file)
        version = "{}.{}".format(*sys.version_info[:2])
        self.lock = RequirementsLock(python=version, wheels=(wheel,))
        self.uri = self.write(self.lock)

    def write(self, lock: RequirementsLock) -> str:
        self.bucket.write("lock.json", lock.model_dump_json().encode())
        return f"s3://{self.bucket.name}/lock.json"


@pytest.fixture
def locked(node: Node, bucket: Bucket, node_credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Locked:
    monkeypatch.setattr(source_program, "BASE", node.folder / "opt/trainyard")
    monkeypatch.setattr(source_program, "_location", lambda: (REGION, ACCOUNT))
    monkeypatch.setattr(bootstrap, "credentials", lambda: node_credentials)
    return Locked(node, bucket)


def test_locked_wheels_are_installed_without_an_index(node: Node, locked: Locked) -> None:
    shutil.rmtree(node.index)
    lock = read_lock(locked.uri, node.python)
    assert lock == locked.lock
    python = install_lock(node.python, lock, locked.uri)
    code = "import node_package, required; print(node_package.LOCATION)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "the node\n"


def test_lock_without_wheels_uses_the_environment_of_the_node(node: Node, locked: Locked) -> None:
    lock = locked.lock.model_copy(update={"wheels": ()})
    assert install_lock(node.python, lock, locked.uri) == node.python


def test_lock_for_another_python_is_not_used(node: Node, locked: Locked) -> None:
    uri = locked.write(locked.lock.model_copy(update={"python": "3.9"}))
    assert read_lock(uri, node.python) is None


def test_wheel_that_differs_from_the_lock_is_refused(node: Node, locked: Locked) -> None:
    locked.bucket.write(locked.key, b"other")
    with pytest.raises(BootstrapError, match="but the lock has"):
        install_lock(node.python, locked.lock, locked.uri)
    assert node.created_environments() == [node.folder / "opt/trainyard/job/wheels"]


def test_index_that_does_not_respond_is_no_permanent_failure(node: Node) -> None:
    node.requirements.write_text("missing==1.0\n")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = node.run("print('never')", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
    error, _, is_permanent = find_error(result.stdout + result.stderr)
    assert "/simple/missing/" in error
    assert not is_permanent


def test_output_of_a_failed_build_is_not_part_of_the_message() -> None:
    build = [f"line {number} of the build" for number in range(20)]
    output = ["error: Failed to build `x==1.0`", "  cause: The build backend returned an error", "[stderr]", *build]
    error, details, is_permanent = find_error(
        "\n".join(["requirements.txt of the job: `uv` ended with 1: ok", *output])
    )
    assert error.startswith("requirements.txt of the job: `uv` failed: Failed to build `x==1.0`: The build backend")
    assert build[-1] not in error
    assert details.endswith(build[-1])
    assert is_permanent


def test_index_with_a_certificate_of_the_stack_is_trusted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of an index with an unknown certificate names the setting; with the setting it is used."""
    for name in certificates.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(certificates, "CERTIFICATES", node.folder / "ca-certificates.pem")
    monkeypatch.setattr(certificates, "_ENVIRONMENT", node.folder / "ca-certificates.conf")
    monkeypatch.setattr(certificates, "ROOT", node.folder)
    authority, server = create_authority(node.folder)
    (node.folder / "index").mkdir()
    REQUIRED_PACKAGE.build(node.folder / "index")
    node.requirements.write_text("required==1.0\n")
    with https_server(node.folder / "index", server) as url:
        refused = node.run("import required", f"{url}/simple")
        node.variables = certificates.install_certificate(authority.read_text())
        trusted = node.run("import required", f"{url}/simple")
    error, _, is_permanent = find_error(refused.stdout + refused.stderr)
    assert "node.ca_certificate" in error
    assert is_permanent
    assert trusted.returncode == 0, trusted.stderr
    assert f"SSL_CERT_FILE={certificates.CERTIFICATES}\n" in (node.folder / "ca-certificates.conf").read_text()
