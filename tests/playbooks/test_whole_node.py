"""A booted node of a GPU, EFA, instance store, Lustre and container stack goes through the whole of node.yml.

The hardware, the kernel's modules and the vendors' packages are the stand-ins that single roles are tested with: what
is looked at here is their order, what each is given of the manifest, and that reboots in mid-play lose nothing.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.nspawn import backend, cgroups
from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.nodes import ROOT, Cloud
from tests.playbooks.roles.amazon import KERNEL, LUSTRE_CLIENT, STORE, efa_installer
from tests.playbooks.roles.containers import IMAGE, container_toolkit, docker
from tests.playbooks.roles.nvidia import CUDA_VARS, UBUNTU, cuda_toolkit, cudnn, distribution, ubuntu_driver
from tests.polling import eventually
from trainyard.models.events import PlayEvent, TaskEvent
from trainyard.models.manifest import Fsx, Gpus, Hardware, Manifest

pytestmark = pytest.mark.booted

EFA_VERSION = "1.50.0"
FSX = Fsx(dns_name="fs-1.fsx.us-east-1.amazonaws.com", mount_name="abc", mount_point="/data/fsx")
GPUS = Gpus(model="A100", driver="open", nvswitch=True, clocks=(1215, 1410))
ROLES = [
    *("preflight", "base", "nvidia_driver", "efa", "nvme", "cuda", "container", "lustre"),
    *("pytorch", "job", "refresh"),
]
# At each boot what the kernel and its devices are: a stock image's nouveau drives the GPUs until it is forbidden; huge
# pages are reserved; there is a device of a GPU, and one for automounts, which systemd looks for at its own start.
BOOT = """\
mount -o remount,rw /sys
mkdir -p /sys/module
[ -e /etc/modprobe.d/trainyard-nouveau.conf ] || mkdir -p /sys/module/nouveau
sed 's/^HugePages_Total:.*/HugePages_Total:    5128/' /proc/meminfo > /run/meminfo
mount --bind /run/meminfo /proc/meminfo
mknod /dev/autofs c 10 235
mknod /dev/nvidia0 c 1 3
cd /usr/local/sbin
chmod +x store nproc
for name in lsblk wipefs mdadm mkfs.xfs mount; do ln -sf store $name; done
"""
UNIT = "[Unit]\nDefaultDependencies=no\n{}\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={}\n"
IMAGES = {
    "/etc/gpus": "NVIDIA A100-SXM4-40GB\n" * 8,
    "/etc/efa-devices": "4\n",
    "/etc/efa-used": "",  # an older driver, which only a reboot unloads
    "/etc/store.json": json.dumps({"disks": {"/dev/nvme1n1": None, "/dev/nvme2n1": None}}),
    "/usr/local/sbin/store": STORE,
    "/usr/local/sbin/nproc": "#!/bin/sh\necho 96\n",
    "/etc/stand-ins.sh": BOOT,
    "/etc/systemd/system/stand-ins.service": UNIT.format("", "/bin/sh -eux /etc/stand-ins.sh"),
    "/etc/systemd/system/automounts.service": UNIT.format(
        "After=stand-ins.service\nBefore=trainyard-node.service", "systemctl daemon-reexec"
    ),
    "/etc/systemd/system/sysinit.target.d/stand-ins.conf": "[Unit]\nRequires=stand-ins.service\n"
    "After=stand-ins.service\n",
    "/etc/systemd/system/multi-user.target.d/stand-ins.conf": "[Unit]\nWants=automounts.service\n",
}


def stated(role: str, file: str, name: str) -> str:
    """A version that a role states."""
    found: str = yaml.safe_load((ROOT / f"playbooks/roles/{role}/{file}/main.yml").read_text())[name]
    return found


def trusted(role: str, source: Repository, *names: str) -> dict[str, Any]:
    """A role's variables of where packages come from. `names`: those of URL, key and fingerprint."""
    values = (source.url, source.key_url, source.fingerprint)
    return {f"{role}_{name}": value for name, value in zip(names, values, strict=True)}


class Sources:
    """The distribution's packages, NVIDIA's and AWS's."""

    def __init__(self, own: Repository, nvidia: Repository, toolkit: Repository, aws: Repository) -> None:
        own.add(*distribution(KERNEL), docker("docker.io"), Package(name="g++", files={"/usr/bin/g++": "#!/bin/sh\n"}))
        own.add(Package(name="ninja-build"), Package(name="python3-dev", version="3.11.2-1"))
        nvidia.add(*ubuntu_driver(stated("nvidia_driver", "vars", "nvidia_driver_pinned")), *cuda_toolkit("13.2"))
        nvidia.add(*cudnn(CUDA_VARS["cuda_cudnn_pinned"]))
        toolkit.add(*container_toolkit(stated("container", "defaults", "container_toolkit_version")))
        aws.add(*LUSTRE_CLIENT)
        aws.sign(efa_installer(aws.folder, EFA_VERSION))
        key = "/usr/share/keyrings/distribution.asc"
        self.files = {
            key: Path(own.folder / "key.asc").read_text(),
            "/etc/apt/sources.list.d/distribution.list": f"deb [signed-by={key}] {own.url} /\n",
        }
        three = ("repository", "repository_key", "repository_fingerprint")
        self.variables = {
            **trusted("nvidia_driver", nvidia, *three),
            **trusted("cuda", nvidia, *three),
            **trusted("container", toolkit, *three),
            **trusted("lustre", aws, "source", "key", "key_fingerprint"),
            **trusted("efa", aws, "url", "key_url", "key_fingerprint"),
            "efa_url": f"{aws.url}/aws-efa-installer-{EFA_VERSION}.tar.gz",
        }


def with_hardware(manifest: Manifest) -> Manifest:
    """Of a stack that calls for every role."""
    [group] = manifest.groups
    hardware = Hardware(gpus=GPUS, disks=2)
    whole = group.model_copy(update={"gpus": 8, "efa_interfaces": 4, "hardware": hardware})
    job = manifest.job.model_copy(update={"container": IMAGE})
    return manifest.model_copy(update={"groups": (whole,), "fsx": FSX, "job": job})


@pytest.fixture(scope="module")
def whole(place: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that has configured itself, through two reboots."""
    folder, network = tmp_path_factory.mktemp("sources"), place.backend.network
    made_by_hypervisor = backend.system_files
    with ExitStack() as stack:
        own, nvidia, toolkit = (
            stack.enter_context(repository(folder / name, network)) for name in ("own", "nvidia", "toolkit")
        )
        aws = stack.enter_context(repository(folder / "aws", network, "noble"))
        sources = Sources(own, nvidia, toolkit, aws)

        def system_files(spec: NodeSpec) -> dict[str, str]:
            return made_by_hypervisor(spec) | NO_SOURCES | UBUNTU | IMAGES | sources.files

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(backend, "system_files", system_files)
        patch.setattr(cgroups, "_DEVICES", (*cgroups._DEVICES, "c 10:235 rwm"))
        place.manifest = with_hardware(place.manifest)
        place.publish(variables=sources.variables, accelerators=False)
        name = place.launch()
        eventually(lambda: any(one.status in ("ok", "failed") for one in place.plays(name)), "the last play", 420)
        yield name


def tasks(place: Cloud, node: str, boot: str) -> list[TaskEvent]:
    return [one for one in place.events(node) if isinstance(one, TaskEvent) and one.boot == boot]


def roles(found: list[TaskEvent]) -> list[str]:
    """Names of the roles that did something, in the order of their first tasks."""
    named = dict.fromkeys(one.ansible_role for one in found if one.status != "skipped" and one.ansible_role)
    return [name for name in named if name != "apt_source"]  # others have it


def told(play: PlayEvent) -> tuple[str, str, str]:
    return play.boot, play.status, play.message


def test_it_reboots_where_a_role_asks_for_it_and_goes_on(place: Cloud, whole: str) -> None:
    nouveau = "nvidia_driver: nouveau drives the GPUs, and lets go of them at a reboot only"
    efa = "efa: the installer could not unload the older driver, which is in use"
    assert [told(play) for play in place.plays(whole)] == [
        ("0001", "rebooting", nouveau),
        ("0002", "rebooting", efa),
        ("0003", "ok", ""),
    ]
    assert place.machine(whole).boots == 3


def test_nothing_that_needs_the_driver_runs_before_it_is_in_force(place: Cloud, whole: str) -> None:
    assert roles(tasks(place, whole, "0001")) == ROLES[:3]


def test_no_job_is_taken_before_every_module_is_loaded_anew(place: Cloud, whole: str) -> None:
    assert roles(tasks(place, whole, "0002")) == ROLES[:8]


def test_all_roles_run_in_their_order(place: Cloud, whole: str) -> None:
    assert roles(tasks(place, whole, "0003")) == ROLES


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("grep -c . /etc/tmpfiles.d/60-trainyard.conf; sed -n 's/.*nr_hugepages.* //p' /etc/tmpfiles.d/*", "2\n5128\n"),
        ("cat /run/gpu/clocks; systemctl is-active nvidia-fabricmanager", "1215, 1410\nactive\n"),
        ("dpkg-query -W -f '${db:Status-Status}' nvidia-dkms-580-open", "installed"),
        (
            "findmnt -no SOURCE /opt/trainyard/scratch; grep -o raid-devices=. /var/log/store",
            ":dev:md127\nraid-devices=2\n",
        ),
        (
            f"docker image inspect {IMAGE} && grep -o '/opt.*docker' /etc/docker/daemon.json",
            "/opt/trainyard/scratch/docker\n",
        ),
        ("grep -o 'in /opt.*fsx' /opt/trainyard/bin/in-container", "in /opt/trainyard /etc/trainyard /data/fsx\n"),
        ("grep -c runtime=nvidia /opt/trainyard/bin/in-container", "1\n"),
        ("findmnt -t tmpfs -no SOURCE /data/fsx", f"{FSX.dns_name}@tcp:/abc\n"),
        ("cat /var/log/loaded", "options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n"),
        (
            "systemctl show -P ExecStopPost trainyard-job | grep -o 'docker rm --force [a-z-]*'",
            "docker rm --force trainyard-job\n",
        ),
    ],
)
def test_each_role_has_what_the_manifest_says(place: Cloud, whole: str, script: str, seen: str) -> None:
    assert place.machine(whole).run("/bin/sh", "-c", script).stdout == seen


def test_its_agent_knows_where_the_compiler_is(place: Cloud, whole: str) -> None:
    eventually(lambda: place.ready(whole), "the agent's word")
    agent = place.machine(whole).run("systemctl", "show", "-P", "MainPID", "trainyard-job").stdout.strip()
    environment = place.machine(whole).run("cat", f"/proc/{agent}/environ").stdout.split("\0")
    assert "CUDA_HOME=/usr/local/cuda-13.2" in environment


def test_a_second_play_changes_nothing(place: Cloud, whole: str) -> None:
    again = place.again(whole)
    assert (again.status, again.changed, place.changed(whole)) == ("ok", 0, []), again.message
