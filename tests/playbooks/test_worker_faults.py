"""What may go wrong while a node configures itself: a retry that succeeds, or one clear message for the launch."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.faults import Outage, Throttle
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor import hypervisor
from rehearsal.hypervisor.metadata import MetadataServer
from tests.nodes import Cloud
from tests.polling import eventually
from trainyard.models.events import PlayEvent

pytestmark = [pytest.mark.booted, pytest.mark.usefixtures("nodes_of_its_own")]
SLOW_SECONDS = 10.0


def ends_well(place: Cloud, node: str) -> None:
    eventually(lambda: any(one.status == "ok" for one in place.plays(node)), f"the configured {node}", 120)


def test_a_bundle_with_a_bad_checksum_is_told_and_a_good_one_taken(place: Cloud) -> None:
    good = place.manifest
    place.manifest = good.model_copy(update={"bundle": good.bundle.model_copy(update={"sha256": "0" * 64})})
    place.publish()
    name = place.launch()
    told = place.play(name, 1)
    assert (told.status, told.instance) == ("failed", name)
    assert told.message.startswith(f"{good.bundle.uri} has SHA-256 {good.bundle.sha256}, the manifest says 0000")
    place.manifest = good
    place.publish()
    ends_well(place, name)


def test_an_s3_that_fails_and_throttles_is_asked_again(place: Cloud, own_account: EmulatedAws) -> None:
    read, write = "s3:GetObject", "s3:PutObject"
    faults = [fault(operation=each, times=3) for fault in (Throttle, Outage) for each in (read, write)]
    own_account.inject(*faults)
    before = len(own_account.journal())
    ends_well(place, place.launch())
    own_account.end_faults(faults)
    met = Counter((one.operation, one.status) for one in own_account.journal()[before:] if one.status >= 500)
    assert met == {(operation, status): 3 for operation in ("GetObject", "PutObject") for status in (500, 503)}


def test_a_metadata_service_that_is_slow_to_start_is_waited_for(place: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[threading.Timer] = []

    class Late(MetadataServer):
        def serve(self) -> None:
            late.append(threading.Timer(SLOW_SECONDS, super().serve))
            late[-1].start()

    monkeypatch.setattr(hypervisor, "MetadataServer", Late)
    name = place.launch()
    eventually(lambda: bool(late), "the machine's plug")
    monkeypatch.undo()
    ends_well(place, name)
    assert "DataSourceEc2" in place.machine(name).run("cat", "/run/cloud-init/result.json").stdout


def test_a_full_disk_is_told_with_its_task_and_a_play_with_room_goes_on(place: Cloud) -> None:
    place.backend.disk_mib = 300  # in memory: this machine's own stays free
    node = place.launch()
    ends_well(place, node)
    place.backend.disk_mib = None
    machine = place.machine(node)
    machine.run("/bin/sh", "-c", "cat /dev/zero > /fill; sync")
    failed = place.again(node)
    machine.run("rm", "/fill")
    assert failed.status == "failed"
    assert "No space left on device" in failed.message
    ends_again(place, node, failed)


def ends_again(place: Cloud, node: str, failed: PlayEvent) -> None:
    def after() -> bool:
        return any(one.status == "ok" and one.time > failed.time for one in place.plays(node))

    eventually(after, "the play with room", 120)


def test_a_role_that_asks_for_it_gets_a_reboot_and_the_play_goes_on(place: Cloud) -> None:
    name = place.launch()
    ends_well(place, name)
    place.machine(name).run("systemctl", "stop", "trainyard-job.service")  # for a job that may run it would wait
    place.machine(name).write("/run/trainyard/reboot-required", "the driver was built for another kernel\n")
    asked = place.again(name)
    assert (asked.status, asked.message) == ("rebooting", "the driver was built for another kernel")
    eventually(lambda: newest(place, name, lambda one: one.boot == "0002" and one.status == "ok"), "the next boot", 120)
    assert place.machine(name).boots == 2


def test_a_reboot_that_does_not_help_is_not_asked_for_for_ever(place: Cloud, node: str) -> None:
    machine = place.machine(node)
    machine.write("/etc/tmpfiles.d/endless.conf", "f /run/trainyard/reboot-required 0644 - - - endless\n")
    machine.run("systemctl", "reboot")
    eventually(lambda: newest(place, node, lambda one: one.boot == "0004"), "the fourth boot", 240)
    last = next(one for one in place.plays(node) if one.boot == "0004")
    assert (last.status, last.message) == ("failed", "a role asks for a reboot at boot 4 still: endless")


def newest(place: Cloud, node: str, wanted: Callable[[Any], bool]) -> bool:
    return any(wanted(one) for one in place.plays(node))
