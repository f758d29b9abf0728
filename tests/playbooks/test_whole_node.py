"""A booted node of a stack with GPUs, EFA, instance store, Lustre and a container runs all roles of node.yml.

Hardware, kernel modules and vendors' packages are the stand-ins from the tests of the roles. These tests cover the
order of the roles, the variables that each role gets from the manifest, and reboots during the playbook.
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
from tests.nodes import ROOT, BootedCluster
from tests.playbooks.roles.amazon import KERNEL, LUSTRE_CLIENT, STORE, efa_installer
from tests.playbooks.roles.containers import IMAGE, container_toolkit, docker
from tests.playbooks.roles.nvidia import CUDA_VARS, UBUNTU, cuda_toolkit, cudnn, distribution, ubuntu_driver
from tests.polling import eventually
from trainyard.models.events import TaskEvent
from trainyard.models.manifest import Fsx, Gpus, Hardware, Manifest

pytestmark = pytest.mark.booted

EFA_VERSION = "1.51.0"
RESOLVED_IMAGE = f"{IMAGE.partition(':')[0]}@sha256:{'5' * 64}"  # of the run; the manifest names the tag
FSX = Fsx(dns_name="fs-1.fsx.us-east-1.amazonaws.com", mount_name="abc", mount_point="/data/fsx")
GPUS = Gpus(model="A100", driver="open", nvswitch=True, clocks=(1215, 1410))
ROLES = [
    *("preflight", "base", "lustre", "nvidia_driver", "efa", "nvme", "cuda", "job_user", "container"),
    *("pytorch", "job", "refresh"),
]
# Kernel state and devices at each boot: nouveau is loaded until it is blacklisted, as on a stock image; huge pages are
# reserved; there are device files for a GPU and for automounts, which systemd opens at its start.
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
IMAGE_FILES = {
    "/etc/gpus": "NVIDIA A100-SXM4-40GB\n" * 8,
    "/etc/efa-devices": "4\n",
    "/etc/efa-used": "",  # an older driver in use: only a reboot unloads it
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


def version_in_role(role: str, file: str, name: str) -> str:
    """Return a version from the variables of a role."""
    version: str = yaml.safe_load((ROOT / f"playbooks/roles/{role}/{file}/main.yml").read_text())[name]
    return version


def repository_variables(role: str, source: Repository, *names: str) -> dict[str, Any]:
    """Return the variables of a role for a repository. `names`: the suffixes of URL, key and fingerprint."""
    values = (source.url, source.key_url, source.fingerprint)
    return {f"{role}_{name}": value for name, value in zip(names, values, strict=True)}


class Sources:
    """The repositories of the distribution, of NVIDIA and of AWS, and the variables that select them."""

    def __init__(self, debian: Repository, nvidia: Repository, toolkit: Repository, aws: Repository) -> None:
        compiler = Package(name="g++", files={"/usr/bin/g++": "#!/bin/sh\n"})
        debian.add(
            *distribution(KERNEL),
            docker("docker.io"),
            compiler,
            Package(name="ninja-build"),
            Package(name="python3-dev", version="3.11.2-1"),
        )
        nvidia.add(
            *ubuntu_driver(version_in_role("nvidia_driver", "vars", "nvidia_driver_pinned_version")),
            *cuda_toolkit("13.2"),
        )
        nvidia.add(*cudnn(CUDA_VARS["cuda_pinned_cudnn"]))
        toolkit.add(*container_toolkit(version_in_role("container", "defaults", "container_toolkit_version")))
        aws.add(*LUSTRE_CLIENT)
        aws.sign(efa_installer(aws.folder, EFA_VERSION))
        key = "/usr/share/keyrings/distribution.asc"
        self.files = {
            key: Path(debian.folder / "key.asc").read_text(),
            "/etc/apt/sources.list.d/distribution.list": f"deb [signed-by={key}] {debian.url} /\n",
        }
        suffixes = ("repository", "repository_key", "repository_fingerprint")
        self.variables = {
            **repository_variables("nvidia_driver", nvidia, *suffixes),
            **repository_variables("cuda", nvidia, *suffixes),
            **repository_variables("container", toolkit, *suffixes),
            **repository_variables("lustre", aws, *suffixes),
            **repository_variables("efa", aws, "installer_url", "signing_key_url", "signing_key_fingerprint"),
            "efa_installer_url": f"{aws.url}/aws-efa-installer-{EFA_VERSION}.tar.gz",
        }


def with_hardware(manifest: Manifest) -> Manifest:
    """Return the manifest of a stack that requires every role."""
    [group] = manifest.groups
    hardware = Hardware(gpus=GPUS, disks=2)
    full_group = group.model_copy(update={"gpus": 8, "efa_interfaces": 4, "hardware": hardware})
    job = manifest.job.model_copy(update={"container": IMAGE})
    return manifest.model_copy(update={"groups": (full_group,), "fsx": FSX, "job": job})


@pytest.fixture(scope="module")
def full_node(cluster: BootedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A configured node, after two reboots."""
    folder, network = tmp_path_factory.mktemp("sources"), cluster.backend.network
    original_system_files = backend.system_files
    with ExitStack() as stack:
        debian, nvidia, toolkit = (
            stack.enter_context(repository(folder / name, network)) for name in ("debian", "nvidia", "toolkit")
        )
        aws = stack.enter_context(repository(folder / "aws", network, "noble"))
        sources = Sources(debian, nvidia, toolkit, aws)

        def system_files(spec: NodeSpec) -> dict[str, str]:
            return original_system_files(spec) | NO_SOURCES | UBUNTU | IMAGE_FILES | sources.files

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(backend, "system_files", system_files)
        patch.setattr(cgroups, "_ALLOWED_DEVICES", (*cgroups._ALLOWED_DEVICES, "c 10:235 rwm"))
        cluster.manifest = with_hardware(cluster.manifest)
        cluster.publish_manifest(variables=sources.variables, use_gpus=False)
        cluster.publish_run(RESOLVED_IMAGE)
        name = cluster.launch_worker()
        eventually(
            lambda: any(event.status in ("ok", "failed") for event in cluster.playbook_events(name)),
            "the last run of the playbook",
            420,
        )
        yield name


def task_events(cluster: BootedCluster, node: str, boot: str) -> list[TaskEvent]:
    return [event for event in cluster.events(node) if isinstance(event, TaskEvent) and event.boot == boot]


def executed_roles(events: list[TaskEvent]) -> list[str]:
    """Return the roles with executed tasks, in the order of their first tasks."""
    names = dict.fromkeys(event.ansible_role for event in events if event.status != "skipped" and event.ansible_role)
    return [name for name in names if name != "apt_source"]  # other roles include it


def test_the_node_reboots_on_request_and_continues(cluster: BootedCluster, full_node: str) -> None:
    nouveau = "nvidia_driver: the nouveau driver is loaded, and only a reboot unloads it"
    efa = "efa: the installer could not unload the older driver, which is in use"
    assert [(event.boot, event.status, event.message) for event in cluster.playbook_events(full_node)] == [
        ("0001", "rebooting", nouveau),
        ("0002", "rebooting", efa),
        ("0003", "ok", ""),
    ]
    assert cluster.machine(full_node).boots == 3


def test_roles_that_need_the_driver_do_not_run_before_it_is_loaded(cluster: BootedCluster, full_node: str) -> None:
    assert executed_roles(task_events(cluster, full_node, "0001")) == ROLES[:4]


def test_the_agent_is_not_started_before_all_modules_are_loaded(cluster: BootedCluster, full_node: str) -> None:
    assert executed_roles(task_events(cluster, full_node, "0002")) == ROLES[:9]


def test_all_roles_run_in_order(cluster: BootedCluster, full_node: str) -> None:
    assert executed_roles(task_events(cluster, full_node, "0003")) == ROLES


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("grep -c . /etc/tmpfiles.d/60-trainyard.conf; sed -n 's/.*nr_hugepages.* //p' /etc/tmpfiles.d/*", "2\n5128\n"),
        ("cat /run/gpu/clocks; systemctl is-active nvidia-fabricmanager", "1215, 1410\nactive\n"),
        ("dpkg-query -W -f '${db:Status-Status}' nvidia-dkms-580-open", "installed"),
        (
            "findmnt -no SOURCE /opt/trainyard/scratch; grep -o raid-devices=. /var/log/store",
            ":dev:md127\nraid-devices=2\n",
        ),
        (
            f"docker image inspect {RESOLVED_IMAGE} && ! docker image inspect {IMAGE} && "
            "grep -o '/opt.*docker' /etc/docker/daemon.json",
            "/opt/trainyard/scratch/docker\n",
        ),
        ("grep -o 'in /opt.*fsx' /opt/trainyard/bin/run-in-container", "in /opt/trainyard /etc/trainyard /data/fsx\n"),
        ("grep -c runtime=nvidia /opt/trainyard/bin/run-in-container", "1\n"),
        ("findmnt -t tmpfs -no SOURCE /data/fsx", f"{FSX.dns_name}@tcp:/abc\n"),
        ("cat /var/log/loaded", "options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n"),
    ],
)
def test_each_role_applies_the_manifest(cluster: BootedCluster, full_node: str, script: str, expected: str) -> None:
    assert cluster.machine(full_node).run_command("/bin/sh", "-c", script).stdout == expected


def test_the_agent_has_the_environment_of_cuda(cluster: BootedCluster, full_node: str) -> None:
    eventually(lambda: cluster.is_ready(full_node), "the agent's readiness")
    agent = cluster.machine(full_node).run_command("systemctl", "show", "-P", "MainPID", "trainyard-job").stdout.strip()
    environment = cluster.machine(full_node).run_command("cat", f"/proc/{agent}/environ").stdout.split("\0")
    assert "CUDA_HOME=/usr/local/cuda-13.2" in environment


def test_a_second_run_changes_nothing(cluster: BootedCluster, full_node: str) -> None:
    second = cluster.rerun_playbook(full_node)
    assert (second.status, second.changed, cluster.changed_tasks(full_node)) == ("ok", 0, []), second.message
