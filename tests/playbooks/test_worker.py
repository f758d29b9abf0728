"""A booted worker: user data, the first run of the playbook, and later runs that change nothing."""

import pytest

from infra.packaging.archive import Entry
from infra.packaging.bundle import pack_bundle
from tests.nodes import ROOT, BootedCluster
from tests.polling import eventually

pytestmark = [pytest.mark.booted, pytest.mark.usefixtures("terminate_new_nodes")]
# Tasks that change the node after a change of base_nofile.
LIMIT_TASKS = [
    "base: Write kernel settings, limits and apt settings",
    "base: Apply kernel settings, limits and time source",
]


def test_the_agent_is_ready(cluster: BootedCluster, node: str) -> None:
    eventually(lambda: cluster.is_ready(node), "the agent's readiness")


def test_cloud_init_reads_user_data_from_the_metadata_service(cluster: BootedCluster, node: str) -> None:
    result = cluster.machine(node).run_command("cat", "/run/cloud-init/result.json").stdout
    assert "DataSourceEc2" in result
    assert '"errors": []' in result


def test_a_second_run_changes_nothing(cluster: BootedCluster, node: str) -> None:
    second = cluster.rerun_playbook(node)
    assert (second.status, second.changed, cluster.changed_tasks(node)) == ("ok", 0, [])


def test_a_changed_variable_changes_only_the_role_that_uses_it(cluster: BootedCluster, node: str) -> None:
    cluster.publish_manifest(variables={"base_nofile": 65536})
    assert cluster.rerun_playbook(node).status == "ok"
    assert cluster.changed_tasks(node) == LIMIT_TASKS
    cluster.publish_manifest(variables={})
    assert cluster.rerun_playbook(node).status == "ok"


def test_the_refresh_timer_applies_a_changed_manifest(cluster: BootedCluster, node: str) -> None:
    cluster.publish_manifest(variables={"refresh_interval_seconds": 1})
    before = len(cluster.playbook_events(node))
    cluster.rerun_playbook(node)
    cluster.publish_manifest(variables={"refresh_interval_seconds": 1, "base_nofile": 65536})
    assert cluster.wait_for_playbook(node, before + 2).status == "ok"
    assert cluster.changed_tasks(node) == LIMIT_TASKS


def test_a_broken_bundle_is_reported_and_does_not_change_the_node(cluster: BootedCluster, node: str) -> None:
    machine, before = cluster.machine(node), len(cluster.playbook_events(node))
    agent = machine.run_command("systemctl", "show", "-p", "MainPID", "trainyard-job.service").stdout
    good, current = cluster.manifest, machine.run_command("readlink", "/opt/trainyard/current").stdout
    bundle = good.bundle.model_copy(update={"sha256": "0" * 64})
    cluster.manifest = good.model_copy(update={"bundle": bundle})
    cluster.publish_manifest()
    event = cluster.wait_for_playbook(node, before + 1)
    assert event.status == "failed"
    assert f"{bundle.uri} has SHA-256 {good.bundle.sha256}, but the manifest has 000000" in event.message
    assert machine.run_command("systemctl", "show", "-p", "MainPID", "trainyard-job.service").stdout == agent
    assert machine.run_command("readlink", "/opt/trainyard/current").stdout == current
    cluster.manifest = good
    cluster.publish_manifest()


def test_a_newer_bundle_becomes_current(cluster: BootedCluster, node: str) -> None:
    before = len(cluster.playbook_events(node))
    newer = pack_bundle(ROOT, {"trainyard/newer.txt": Entry(b"newer")})
    cluster.publish_manifest(newer)
    assert cluster.wait_for_playbook(node, before + 1).status == "ok"
    assert cluster.machine(node).run_command("readlink", "/opt/trainyard/current").stdout.strip().endswith(newer.sha256)


def test_an_interrupted_playbook_ends_in_the_same_state(cluster: BootedCluster, node: str) -> None:
    interrupted = cluster.launch_worker()
    machine = cluster.machine(interrupted)
    eventually(
        lambda: any(event.kind == "task" and event.status == "changed" for event in cluster.events(interrupted)),
        "a change",
    )
    machine.run_command("systemctl", "kill", "--signal=KILL", "trainyard-node.service")
    eventually(
        lambda: any(event.status == "ok" for event in cluster.playbook_events(interrupted)),
        "the repeated playbook",
        120,
    )
    assert system_state(cluster, interrupted) == system_state(cluster, node)


def system_state(cluster: BootedCluster, instance: str) -> str:
    """Return checksums of the playbook's files in /etc, held packages, states of units and a kernel setting."""
    script = (
        "cd /etc; find . -name '*trainyard*' -type f | sort | xargs sha256sum; apt-mark showhold;"
        " systemctl is-active trainyard-job trainyard-refresh.timer; sysctl -n net.core.somaxconn"
    )
    return cluster.machine(instance).run_command("/bin/sh", "-c", script).stdout
