"""Shells on nodes: the selection of the node, and the calls of the Session Manager plugin."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.problems import rejects
from trainyard.errors import InputError
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Control
from trainyard.operations import sessions
from trainyard.operations.cluster import Cluster
from trainyard.operations.run_record import create_run_record

# The plugin: writes its arguments and the response to files, and prints what the real one prints around a command.
PLUGIN = """
import json, os, sys
from pathlib import Path
if sys.argv[1:] == ["--version"]:
    print("{version}")
    sys.exit(0)
folder = Path({folder!r})
(folder / "arguments").write_text(json.dumps(sys.argv[1:]))
(folder / "response").write_text(os.environ["AWS_SSM_START_SESSION_RESPONSE"])
sys.stdout.write("\\nStarting session with SessionId: s-1\\n")
sys.stdout.write({output!r})
sys.stdout.write("\\n\\nExiting session with sessionId: s-1.\\n")
"""
INSTANCE = "i-0123456789abcdef0"


class FakeSsm:
    """SSM's client: the emulated account has no instance with an agent here."""

    class meta:  # noqa: N801
        endpoint_url = "https://ssm.us-east-1.amazonaws.com"

    def start_session(self, **request: object) -> dict[str, str]:
        return {"SessionId": "s-1", "TokenValue": "secret", "StreamUrl": "wss://a"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Install":
    monkeypatch.setattr(sessions, "client", lambda service, region: FakeSsm())
    return Install(tmp_path, monkeypatch)


class Install:
    """Installs a plugin of a version, which prints an output, on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def __call__(self, output: str = "", version: str = "1.2.600.0") -> None:
        program = PLUGIN.format(version=version, folder=str(self.folder), output=output)
        file = self.folder / sessions.PLUGIN
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(program)} "$@"\n')
        file.chmod(0o755)


def run(*command: str) -> list[str | int]:
    return list(sessions.Session(REGION, INSTANCE, command).run())


def test_plugin_receives_the_request_and_the_token_only_in_its_environment(install: Install) -> None:
    install("EXIT_CODE: 0\n")
    run("echo", "a b")
    arguments = json.loads((install.folder / "arguments").read_text())
    request = json.loads(arguments.pop(4))
    assert arguments == ["AWS_SSM_START_SESSION_RESPONSE", REGION, "StartSession", "", FakeSsm.meta.endpoint_url]
    assert request == {
        "Target": INSTANCE,
        "DocumentName": "AWS-StartNonInteractiveCommand",
        "Parameters": {"command": ["echo 'a b'"], "separateOutputStream": ["true"]},
    }
    assert json.loads((install.folder / "response").read_text())["TokenValue"] == "secret"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("a\nb\nEXIT_CODE: 3\n", ["a\n", "b\n", 3]),
        ("no line endEXIT_CODE: 0\n", ["no line end", 0]),
        ("EXIT_CODE: 9\n\na\nEXIT_CODE: 0\n", ["EXIT_CODE: 9\n", "\n", "a\n", 0]),
        ("EXIT_CODE: 0\n", [0]),
    ],
)
def test_command_returns_its_output_and_exit_status(output: str, expected: list[str | int], install: Install) -> None:
    install(output)
    assert run("command") == expected


def test_session_that_ends_before_the_command_is_an_error(install: Install) -> None:
    install("a\n")
    with pytest.raises(RuntimeError, match="without an exit status"):
        run("command")


@pytest.mark.parametrize(
    ("version", "code"), [("1.2.497.0", "session_plugin_outdated"), (None, "session_plugin_missing")]
)
def test_missing_or_old_plugin_is_refused(version: str | None, code: str, install: Install) -> None:
    if version:
        install(version=version)
    with pytest.raises(InputError) as error:
        sessions.require_plugin()
    assert error.value.problems[0].code == code


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return clusters.create_cluster(REGION)


def find(cluster: clusters.Cluster, node: str | None) -> str:
    return sessions.find_node(Cluster(cluster.stack, REGION), node)


def test_head_needs_no_workers(cluster: clusters.Cluster) -> None:
    head = cluster.launch_head()
    assert find(cluster, "head") == head


def test_head_that_aws_replaces_is_reported(cluster: clusters.Cluster) -> None:
    with rejects("node_missing", "AWS replaces the head now"):
        find(cluster, "head")


def test_workers_are_numbered_by_rank(cluster: clusters.Cluster) -> None:
    nodes = cluster.launch_instances(3)
    order = [nodes[2], nodes[0]]
    record = create_run_record(cluster.manifest, 0.0)
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    control = Control(attempt=1, nodes=tuple(order))
    cluster.data.write(RunLayout(record.run).control, control.model_dump_json().encode())
    assert find(cluster, None) == order[0]
    assert [find(cluster, str(number)) for number in range(3)] == [*order, nodes[1]]
    assert find(cluster, nodes[1]) == nodes[1]


@pytest.mark.parametrize("node", [None, "0", "1", "haed", INSTANCE])
def test_missing_node_is_refused(node: str | None, cluster: clusters.Cluster) -> None:
    with pytest.raises(InputError) as error:
        find(cluster, node)
    assert error.value.problems[0].code == "node_missing"
