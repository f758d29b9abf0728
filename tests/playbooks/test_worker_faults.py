"""Faults while the playbook runs on a node: a retry that succeeds, or event clear message for the launch."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.faults import Outage, Throttle
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor import hypervisor
from rehearsal.hypervisor.metadata import MetadataServer
from tests.nodes import BootedCluster
from tests.polling import eventually
from trainyard.models.events import PlaybookEvent

pytestmark = [pytest.mark.booted, pytest.mark.usefixtures("terminate_new_nodes")]
DELAY_SECONDS = 10.0


def wait_until_configured(cluster: BootedCluster, node: str) -> None:
    eventually(
        lambda: any(event.status == "ok" for event in cluster.playbook_events(node)), f"the configured {node}", 120
    )


def test_a_bundle_with_a_wrong_checksum_is_reported_and_a_correct_bundle_is_used(cluster: BootedCluster) -> None:
    good = cluster.manifest
    cluster.manifest = good.model_copy(update={"bundle": good.bundle.model_copy(update={"sha256": "0" * 64})})
    cluster.publish_manifest()
    name = cluster.launch_worker()
    event = cluster.wait_for_playbook(name, 1)
    assert (event.status, event.instance) == ("failed", name)
    assert event.message.startswith(f"{good.bundle.uri} has SHA-256 {good.bundle.sha256}, but the manifest has 0000")
    cluster.manifest = good
    cluster.publish_manifest()
    wait_until_configured(cluster, name)


def test_requests_to_a_failing_and_throttling_s3_are_retried(cluster: BootedCluster, own_account: EmulatedAws) -> None:
    read, write = "s3:GetObject", "s3:PutObject"
    faults = [fault(operation=operation, times=3) for fault in (Throttle, Outage) for operation in (read, write)]
    own_account.inject(*faults)
    before = len(own_account.journal())
    wait_until_configured(cluster, cluster.launch_worker())
    own_account.remove_faults(faults)
    errors = Counter((call.operation, call.status) for call in own_account.journal()[before:] if call.status >= 500)
    assert errors == {(operation, status): 3 for operation in ("GetObject", "PutObject") for status in (500, 503)}


def test_a_node_waits_for_a_slow_metadata_service(cluster: BootedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []

    class DelayedMetadataServer(MetadataServer):
        def serve(self) -> None:
            timers.append(threading.Timer(DELAY_SECONDS, super().serve))
            timers[-1].start()

    monkeypatch.setattr(hypervisor, "MetadataServer", DelayedMetadataServer)
    name = cluster.launch_worker()
    eventually(lambda: bool(timers), "the start of the metadata service")
    monkeypatch.undo()
    wait_until_configured(cluster, name)
    assert "DataSourceEc2" in cluster.machine(name).run_command("cat", "/run/cloud-init/result.json").stdout


def test_a_full_disk_is_reported_and_the_next_run_succeeds(cluster: BootedCluster) -> None:
    cluster.backend.disk_mib = 300  # a disk in memory: this machine's disk does not fill up
    node = cluster.launch_worker()
    wait_until_configured(cluster, node)
    cluster.backend.disk_mib = None
    machine = cluster.machine(node)
    machine.run_command("/bin/sh", "-c", "cat /dev/zero > /fill; sync")
    failed = cluster.rerun_playbook(node)
    machine.run_command("rm", "/fill")
    assert failed.status == "failed"
    assert "No space left on device" in failed.message
    wait_for_success_after(cluster, node, failed)


def wait_for_success_after(cluster: BootedCluster, node: str, failed: PlaybookEvent) -> None:
    def has_succeeded() -> bool:
        return any(event.status == "ok" and event.time > failed.time for event in cluster.playbook_events(node))

    eventually(has_succeeded, "a run with free disk space", 120)


def test_a_requested_reboot_is_done_and_the_playbook_runs_again(cluster: BootedCluster) -> None:
    name = cluster.launch_worker()
    wait_until_configured(cluster, name)
    cluster.machine(name).run_command(
        "systemctl", "stop", "trainyard-job.service"
    )  # a running job would delay the reboot
    cluster.machine(name).write_file("/run/trainyard/reboot-required", "the driver was built for another kernel\n")
    event = cluster.rerun_playbook(name)
    assert (event.status, event.message) == ("rebooting", "the driver was built for another kernel")
    eventually(
        lambda: has_playbook_event(cluster, name, lambda event: event.boot == "0002" and event.status == "ok"),
        "the next boot",
        120,
    )
    assert cluster.machine(name).boots == 2


def test_repeated_reboot_requests_fail_after_the_fourth_boot(cluster: BootedCluster, node: str) -> None:
    machine = cluster.machine(node)
    machine.write_file("/etc/tmpfiles.d/endless.conf", "f /run/trainyard/reboot-required 0644 - - - endless\n")
    machine.run_command("systemctl", "reboot")
    eventually(lambda: has_playbook_event(cluster, node, lambda event: event.boot == "0004"), "the fourth boot", 240)
    last = next(event for event in cluster.playbook_events(node) if event.boot == "0004")
    assert (last.status, last.message) == ("failed", "a role requests another reboot at boot 4: endless")


def has_playbook_event(cluster: BootedCluster, node: str, condition: Callable[[Any], bool]) -> bool:
    return any(condition(event) for event in cluster.playbook_events(node))
