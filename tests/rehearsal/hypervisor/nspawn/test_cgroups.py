"""Control groups of booted nodes."""

import subprocess
from threading import Timer

import pytest

from rehearsal.hypervisor.nspawn.cgroups import Cgroup

pytestmark = pytest.mark.booted


def test_group_is_removed_after_its_last_process_has_ended() -> None:
    group = Cgroup("trainyard-test-cgroups")
    group.create()
    with subprocess.Popen(
        ["/bin/sh", "-ec", f"{group.join_command()}; echo joined; exec sleep 60"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        timer = Timer(0.5, process.kill)
        timer.start()
        group.remove()
        timer.join()
    assert not [folder for folder in group.folders if folder.exists()]
