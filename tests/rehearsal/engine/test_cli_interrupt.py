"""Ctrl-C and SIGKILL during the launch, with the real Pulumi CLI and command plugin. Skipped without one of them."""

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rehearsal.aws.timing import Timing
from tests.clusters import Cluster
from tests.polling import eventually
from tests.rehearsal.adapter.conftest import ROOT
from tests.rehearsal.engine.test_cli import Stack, create_stack, requires_cli
from trainyard.aws import clients
from trainyard.operations.cluster import Cluster as DeployedCluster

pytestmark = [
    requires_cli,
    pytest.mark.skipif(not shutil.which("pulumi-resource-command"), reason="Pulumi's command plugin is not on PATH"),
]
FIRST_INTERRUPT, SECOND_INTERRUPT = 1, 2


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # the copied tree has no .venv
    with create_stack(tmp_path, "local", plugins=("command",)) as created:
        shutil.copy(ROOT / "infra/launcher", created.tree / "infra/launcher")
        clients.client.cache_clear()
        # Nodes that are pending make a rollback longer than the 5 s after which the engine kills what it has started.
        created.aws.set_timing(Timing(pending_seconds=12))
        yield created
    clients.client.cache_clear()


def cluster_of(stack: Stack) -> Cluster | None:
    """Return the stack's cluster; None before its manifest exists."""
    deployed = DeployedCluster("local", str(stack.config["aws:region"]))
    if not deployed.is_deployed or deployed.staging is None:
        return None
    return Cluster("local", deployed.manifest, deployed.data, deployed.staging)


def launches(tree: Path) -> list[psutil.Process]:
    """Return the processes of `trainyard launch` in the tree."""
    processes = psutil.process_iter(["cmdline", "cwd"])
    return [item for item in processes if item.info["cwd"] == str(tree) and "launch" in (item.info["cmdline"] or ())]


def start_up(stack: Stack, errors: list[str]) -> tuple[threading.Thread, Cluster]:
    """Start `pulumi up`, and return its thread and the cluster when the launch has launched both nodes."""
    running = threading.Thread(target=lambda: errors.extend(message for _, message in stack.run("up").errors))
    running.start()
    eventually(lambda: cluster_of(stack) is not None, "the manifest", 60)
    cluster = cluster_of(stack)
    assert cluster is not None
    cluster.write_head_ready_events()
    eventually(lambda: len(cluster.members()) == 2, "the launch of two nodes", 60)
    return running, cluster


@pytest.mark.parametrize("interrupts", [FIRST_INTERRUPT, SECOND_INTERRUPT])
def test_interrupted_up_terminates_the_nodes_that_it_launched(stack: Stack, interrupts: int) -> None:
    errors: list[str] = []
    running, cluster = start_up(stack, errors)
    for _ in range(interrupts):
        stack.workspace.interrupt()
        running.join(2)
    eventually(lambda: not running.is_alive(), "the end of pulumi up", 60)
    eventually(lambda: cluster.members() == [], "the termination of the nodes", 60)
    eventually(lambda: launches(stack.tree) == [], "the end of the launch", 60)
    assert errors
    run = DeployedCluster("local", cluster.manifest.region)
    record = run.current_run()
    assert record is not None
    outcome = run.outcome(record.run)
    assert outcome is not None
    assert (outcome.state, outcome.launch_failed) == ("failed", True)
    assert not stack.run("destroy").errors


def test_killed_up_terminates_its_nodes_and_locks_the_stack_until_cancel(stack: Stack) -> None:
    running, cluster = start_up(stack, [])
    folder = str(stack.workspace.folder)
    (cli,) = (each for each in psutil.Process().children() if folder in each.cmdline())
    plugins = [each for each in cli.children() if each.name().startswith("pulumi-")]
    cli.kill()
    eventually(lambda: not running.is_alive(), "the end of pulumi up", 60)
    eventually(lambda: cluster.members() == [], "the termination of the nodes", 60)
    eventually(lambda: launches(stack.tree) == [], "the end of the launch", 60)
    for plugin in plugins:  # they notice the end of the engine minutes later
        plugin.kill()
    assert "currently locked" in stack.run("destroy").errors[0][1]
    stack.workspace.run_command("cancel", "--yes", "local")
    assert not stack.run("destroy").errors
