"""A booted worker, from its user-data on: it configures itself once, and a second time nothing is left to do."""

import pytest

from infra.packaging.archive import Entry
from infra.packaging.bundle import pack_bundle
from tests.nodes import ROOT, Cloud
from tests.polling import eventually

pytestmark = [pytest.mark.booted, pytest.mark.usefixtures("nodes_of_its_own")]
# What another limit of open files changes.
OF_LIMITS = ["base: Write limits, kernel settings, and what apt shall bear", "base: Have the settings in force"]


def test_its_agent_is_ready(place: Cloud, node: str) -> None:
    eventually(lambda: place.ready(node), "the agent's word")


def test_cloud_init_took_user_data_from_the_metadata_service(place: Cloud, node: str) -> None:
    told = place.machine(node).run("cat", "/run/cloud-init/result.json").stdout
    assert "DataSourceEc2" in told
    assert '"errors": []' in told


def test_a_second_play_changes_nothing(place: Cloud, node: str) -> None:
    again = place.again(node)
    assert (again.status, again.changed, place.changed(node)) == ("ok", 0, [])


def test_one_changed_variable_changes_its_own_role_alone(place: Cloud, node: str) -> None:
    place.publish(variables={"base_nofile": 65536})
    assert place.again(node).status == "ok"
    assert place.changed(node) == OF_LIMITS
    place.publish(variables={})
    assert place.again(node).status == "ok"


def test_a_changed_manifest_reaches_it_by_the_timer(place: Cloud, node: str) -> None:
    place.publish(variables={"refresh_seconds": 1})
    before = len(place.plays(node))
    place.again(node)
    place.publish(variables={"refresh_seconds": 1, "base_nofile": 65536})
    assert place.play(node, before + 2).status == "ok"
    assert place.changed(node) == OF_LIMITS


def test_a_broken_bundle_leaves_it_as_it_is_and_is_told(place: Cloud, node: str) -> None:
    machine, before = place.machine(node), len(place.plays(node))
    agent = machine.run("systemctl", "show", "-p", "MainPID", "trainyard-job.service").stdout
    good, current = place.manifest, machine.run("readlink", "/opt/trainyard/current").stdout
    bundle = good.bundle.model_copy(update={"sha256": "0" * 64})
    place.manifest = good.model_copy(update={"bundle": bundle})
    place.publish()
    told = place.play(node, before + 1)
    assert told.status == "failed"
    assert f"{bundle.uri} has SHA-256 {good.bundle.sha256}, the manifest says 000000" in told.message
    assert machine.run("systemctl", "show", "-p", "MainPID", "trainyard-job.service").stdout == agent
    assert machine.run("readlink", "/opt/trainyard/current").stdout == current
    place.manifest = good
    place.publish()


def test_a_newer_bundle_takes_its_place(place: Cloud, node: str) -> None:
    before = len(place.plays(node))
    newer = pack_bundle(ROOT, {"trainyard/newer.txt": Entry(b"newer")})
    place.publish(newer)
    assert place.play(node, before + 1).status == "ok"
    assert place.machine(node).run("readlink", "/opt/trainyard/current").stdout.strip().endswith(newer.sha256)


def test_a_play_killed_half_way_ends_in_the_same_state(place: Cloud, node: str) -> None:
    cut = place.launch()
    machine = place.machine(cut)
    eventually(lambda: any(one.kind == "task" and one.status == "changed" for one in place.events(cut)), "a change")
    machine.run("systemctl", "kill", "--signal=KILL", "trainyard-node.service")
    eventually(lambda: any(one.status == "ok" for one in place.plays(cut)), "the play that began again", 120)
    assert settled(place, cut) == settled(place, node)


def settled(place: Cloud, instance: str) -> str:
    """What a play has made, by its content: files of /etc that the image has not, holds, units."""
    script = (
        "cd /etc; find . -name '*trainyard*' -type f | sort | xargs sha256sum; apt-mark showhold;"
        " systemctl is-active trainyard-job trainyard-refresh.timer; sysctl -n net.core.somaxconn"
    )
    return place.machine(instance).run("/bin/sh", "-c", script).stdout
