"""Shells in nodes of the process backend."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.process.backend import ProcessBackend
from rehearsal.hypervisor.processes import find_processes
from rehearsal.hypervisor.registry import remove_leftovers
from rehearsal.kept.node_shell import node_shell
from tests.polling import eventually


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The root folder of a node."""
    backend = ProcessBackend(tmp_path)
    variables = {"EXTRA": "of the node"}
    user_data, endpoint = "#cloud-config\n{}", "http://127.0.0.1:1"
    backend.boot(
        NodeSpec(id="i-1", address="127.0.0.1", user_data=user_data, metadata_endpoint=endpoint, environment=variables)
    )
    root = backend.root("i-1")
    eventually((root / "run/init").exists, "the start of the node")
    yield root
    backend.kill("i-1")
    remove_leftovers(tmp_path)
    assert not find_processes(tmp_path)


def test_command_runs_with_the_folder_and_environment_of_its_node(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "prod")
    shell = node_shell(root.parents[1], "process", "i-1")
    assert shell.run('echo "$PWD $EXTRA $TERM ${AWS_PROFILE-none}"; exit 3', "xterm") == 3
    assert capfd.readouterr().out == f"{root} of the node xterm none\n"


def test_process_of_a_shell_belongs_to_its_node(root: Path) -> None:
    shell = node_shell(root.parents[1], "process", "i-1")
    script = "import sys; from pathlib import Path; from rehearsal.hypervisor.processes import find_processes as f; "
    script += f"sys.exit(len(f(Path({str(root.parents[1])!r}), Path({str(root)!r}))))"
    # Not the script, which has the node's environment itself, and its bash: bash replaces itself by the last command.
    assert shell.run(f"{sys.executable} -c '{script.replace(chr(39), chr(34))}'", "dumb") == 2


def test_node_that_does_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        node_shell(tmp_path, "process", "i-2")
