"""Control groups of nodes."""

import subprocess
from threading import Timer

import pytest

from rehearsal.hypervisor.nspawn.cgroups import Cgroup

pytestmark = pytest.mark.booted


def test_a_group_goes_once_its_last_process_has_ended() -> None:
    group = Cgroup("trainyard-test-cgroups")
    group.make()
    with subprocess.Popen(
        ["/bin/sh", "-ec", f"{group.join()}; echo in; exec sleep 60"], stdout=subprocess.PIPE
    ) as held:
        assert held.stdout
        held.stdout.readline()
        end = Timer(0.5, held.kill)
        end.start()
        group.remove()
        end.join()
    assert not [folder for folder in group.folders if folder.exists()]
