"""The role `container` on booted machines: its files and command lines, with a stand-in for Docker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, Booted, Play, booted
from tests.playbooks.roles.containers import IMAGE, container_toolkit, docker

pytestmark = pytest.mark.booted

SCRATCH = "/opt/trainyard/scratch"
ON_SCRATCH = {"container_image": IMAGE, "container_data": f"{SCRATCH}/docker"}
MOUNT = f"mount -t tmpfs tmpfs {SCRATCH}"
GPU = "mknod /dev/nvidia0 c 1 3"
VERIFY = f"{ROOT}/playbooks/roles/container/files/verify.sh"


class Node:
    def __init__(self, machine: Booted, nvidia: Repository) -> None:
        self.machine, self.nvidia, self.sh = machine, nvidia, machine.sh

    def run(self, **variables: Any) -> Play:
        source = {"": self.nvidia.url, "_key": self.nvidia.key_url, "_fingerprint": self.nvidia.fingerprint}
        told = {f"container_repository{name}": value for name, value in source.items()}
        return self.machine.role("container", **told, **variables)

    def daemon(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sh("cat /etc/docker/daemon.json"))
        return found

    def asked(self) -> list[list[str]]:
        """Command lines of `docker`, in their order."""
        return [json.loads(line) for line in self.sh("cat /run/asked").splitlines()]


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = tmp_path_factory.mktemp("made")
    with (
        booted(made / "node", NO_SOURCES) as node,
        repository(made / "distribution", node.network) as own,
        repository(made / "nvidia", node.network) as nvidia,
    ):
        helper = {"/usr/bin/docker-credential-ecr-login": "#!/bin/sh\n"}
        own.add(docker("docker.io"), docker("docker-ce"), Package(name="amazon-ecr-credential-helper", files=helper))
        own.be_source_of(node, "distribution")
        for version in ("1.17.4", "1.18.0", "1.20.0", "1.21.0"):
            nvidia.add(*container_toolkit(version))
        yield Node(node, nvidia)


def test_docker_and_toolkit_are_pinned_held_and_configured(node: Node) -> None:
    first = node.run()
    assert first.code == 0, first.told
    assert node.sh("dpkg-query -W -f '${Version}' nvidia-container-toolkit") == "1.20.0-1"
    assert {"docker.io", "nvidia-container-toolkit"} <= set(node.sh("apt-mark showhold").split())
    node.sh("systemctl is-enabled docker; systemctl is-active docker")
    assert node.daemon() == {
        "bridge": "none",
        "ip6tables": False,
        "iptables": False,
        "live-restore": True,
        "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
    }
    again = node.run()
    assert (again.code, again.changed) == (0, ()), again.told


def test_what_an_image_brings_is_kept(node: Node) -> None:
    node.nvidia.be_source_of(node.machine, "image")
    node.sh("apt-get install -qy docker-ce nvidia-container-toolkit-base=1.18.0-1; mkdir /etc/docker")
    node.machine.put("/etc/docker/daemon.json", '{"mtu": 9001, "runtimes": {"kata": {"path": "kata"}}}')
    node.nvidia.away()  # nothing is asked of it
    told = node.run()
    assert told.code == 0, told.told
    assert "installed" not in node.sh("dpkg-query -W -f '${db:Status-Status}' docker.io").split()
    assert node.daemon()["mtu"] == 9001
    assert set(node.daemon()["runtimes"]) == {"kata", "nvidia"}


def test_a_toolkit_that_lets_containers_out_is_replaced(node: Node) -> None:
    node.nvidia.be_source_of(node.machine, "image")
    node.sh("apt-get install -qy nvidia-container-toolkit-base=1.17.4-1; apt-mark hold nvidia-container-toolkit-base")
    assert node.run().code == 0
    assert node.sh("dpkg-query -W -f '${Version}' nvidia-container-toolkit-base") == "1.20.0-1"


def test_settings_that_docker_refuses_do_not_land(node: Node) -> None:
    node.sh("mkdir /etc/docker")
    node.machine.put("/etc/docker/daemon.json", '{"no-such-setting": 1}')
    told = node.run()
    assert told.code == 2
    assert "Docker refuses the settings meant for /etc/docker/daemon.json" in told.failure
    assert node.daemon() == {"no-such-setting": 1}
    assert node.sh("ls /etc/docker") == "daemon.json\n"


def test_a_run_that_was_killed_before_docker_started_anew_is_taken_up(node: Node) -> None:
    assert node.run().code == 0
    node.sh("echo '{}' > /run/docker-daemon")  # what the daemon has is not what the file says
    again = node.run()
    assert again.code == 0, again.told
    assert "nvidia" in node.sh("cat /run/docker-daemon")


def test_images_lie_where_the_stack_says_and_the_jobs_own_is_pulled(node: Node) -> None:
    node.sh(f"touch /run/fails; {GPU}")  # the registry refuses the first time
    told = node.run(**ON_SCRATCH)
    assert told.code == 0, told.told
    assert node.daemon()["data-root"] == f"{SCRATCH}/docker"
    assert node.daemon()["features"] == {"containerd-snapshotter": False}
    assert node.sh(f"cat {SCRATCH}/docker/images") == IMAGE
    assert node.run(**ON_SCRATCH).changed == ()


def test_docker_waits_at_every_boot_for_the_disk_of_its_images(node: Node) -> None:
    node.sh(f"{GPU}; mkdir -p {SCRATCH}; {MOUNT}")
    assert node.run(**ON_SCRATCH).code == 0
    node.machine.reboot()
    assert node.sh(f"systemctl is-enabled docker; ls {SCRATCH}") == "enabled\n"
    assert node.sh("systemctl is-active docker || true") == "inactive\n"
    node.sh(f"{GPU}; {MOUNT}")
    told = node.run(**ON_SCRATCH)
    assert told.code == 0, told.told
    node.sh(f"systemctl is-active docker; ls {SCRATCH}/docker/volumes")


def test_docker_that_was_there_before_the_disk_is_started_anew_on_it(node: Node) -> None:
    node.sh(GPU)
    assert node.run(**ON_SCRATCH).code == 0
    node.sh(f"{MOUNT}; mkdir {SCRATCH}/docker")
    done = node.machine.machine.run("sh", VERIFY, "gpus", "1.17.8", f"{SCRATCH}/docker", "", "/opt/trainyard/bin")
    assert (done.returncode, done.stderr) == (
        1,
        f"Docker was started before {SCRATCH}/docker was mounted, and writes to the folder below\n",
    )
    told = node.run(**ON_SCRATCH)
    assert told.code == 0, told.told
    node.sh(f"ls {SCRATCH}/docker/volumes")
    assert node.run(**ON_SCRATCH).changed == ()


def test_a_builder_leaves_the_image_to_the_nodes_disks(node: Node) -> None:
    told = node.run(container_image=IMAGE, container_pull=False)
    assert told.code == 0, told.told
    node.sh("! test -e /var/lib/docker/images")


def test_an_image_of_ecr_is_pulled_as_the_nodes_role(node: Node) -> None:
    registry = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
    told = node.run(container_image=f"{registry}/pytorch-training:2.9", container_gpus=False)
    assert told.code == 0, told.told
    assert json.loads(node.sh("cat /root/.docker/config.json")) == {"credHelpers": {registry: "ecr-login"}}
    node.sh("! dpkg-query -W nvidia-container-toolkit")
    assert "runtimes" not in node.daemon()


def test_a_job_in_a_container_has_network_devices_memory_and_environment_of_the_node(node: Node) -> None:
    assert node.run(container_mounts=["/opt/trainyard", "/fsx"]).code == 0
    node.sh("mkdir /dev/infiniband; mknod /dev/infiniband/uverbs0 c 1 3; mknod /dev/nvidia0 c 1 3; mkdir -p /opt/job")
    node.sh("rm /run/asked; mkdir /dev/nvidia-caps; touch /dev/nvidiactl")  # not a device
    script = (
        "cd /opt/job; status=0; env HF_TOKEN='s3 cret' RANK=3 LD_LIBRARY_PATH=/x INVOCATION_ID=1 "
        f"/opt/trainyard/bin/in-container {IMAGE} torchrun --master 'a b' \"$HOME\" || status=$?; echo $status"
    )
    assert node.sh(script) == "7\n"  # the container's own
    left, run = node.asked()
    assert left == ["rm", "--force", "trainyard-job"]
    at = run.index(IMAGE)
    assert run[at:] == [IMAGE, "torchrun", "--master", "a b", "/root"]
    options = set(run[1:at])
    assert options >= {
        *("--rm", "--init", "--name=trainyard-job", "--network=host", "--ipc=host", "--ulimit=memlock=-1"),
        *("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all", "--device=/dev/nvidia0", "--workdir=/opt/job"),
        *("--device=/dev/infiniband/uverbs0", "--env=HF_TOKEN", "--env=RANK"),
        *(f"--mount=type=bind,source={folder},target={folder}" for folder in ("/opt/trainyard", "/fsx")),
    }
    assert not options & {"--env=LD_LIBRARY_PATH", "--env=INVOCATION_ID", "--env=PATH", "--device=/dev/nvidiactl"}
    assert "s3 cret" not in " ".join(run)


def test_without_gpus_a_container_asks_for_none(node: Node) -> None:
    assert node.run(container_gpus=False).code == 0
    node.sh(f"rm /run/asked; /opt/trainyard/bin/in-container {IMAGE} true || true")
    assert not [word for word in node.asked()[-1] if "nvidia" in word.lower() and word != IMAGE]


def test_docker_that_does_not_start_is_said(node: Node) -> None:
    assert node.run().code == 0
    node.sh("rm /run/docker-daemon; sed -i '2iraise SystemExit(1)' /usr/bin/dockerd")
    told = node.run()
    assert told.code == 2
    assert "systemctl restart docker.service" in told.failure


def test_the_verification_sees_what_changed_since(node: Node) -> None:
    assert node.run().code == 0
    good = ("gpus", "1.17.8", "", "", "/opt/trainyard/bin")

    def told(*arguments: str, spoil: str = "true") -> tuple[int, str]:
        node.sh(spoil)
        done = node.machine.machine.run("sh", VERIFY, *arguments)
        return done.returncode, done.stderr

    assert told(*good) == (0, "")
    assert told("gpus", "2.0", *good[2:]) == (1, "NVIDIA's container toolkit is 1.20.0, older than 2.0\n")
    elsewhere = told("gpus", "1.17.8", "/nvme", IMAGE, "/opt")
    assert elsewhere == (
        1,
        "Docker keeps its images in /var/lib/docker, not in /nvme\n"
        f"there is no /opt/in-container\nthe image {IMAGE} is not there\n",
    )
    with_image = ("gpus", "1.17.8", "", IMAGE, "/opt/trainyard/bin")
    blind = told(*with_image, spoil=f"echo {IMAGE} > /var/lib/docker/images")
    assert blind == (1, f"no container of {IMAGE} runs Python as the job will: it sees no GPU\n")
    assert told(*with_image, spoil=GPU) == (0, "")
    folder = told(*with_image, spoil="rmdir /etc/trainyard")
    assert folder[1].endswith("bind source path does not exist: /etc/trainyard\n")
    node.sh("mkdir /etc/trainyard")
    with_data = ("gpus", "1.17.8", "/var/lib/docker", *with_image[3:])
    elsewhere = told(*with_data)
    assert elsewhere == (1, f"the image {IMAGE} lies in containerd, not in /var/lib/docker\n")
    gone = told(*good, spoil="rm /usr/bin/nvidia-container-runtime")
    assert gone == (1, "there is no nvidia-container-runtime\n")
    assert "and not NVIDIA's" in told(*good, spoil="echo '{}' > /run/docker-daemon")[1]
    assert "Docker does not answer" in told(*good, spoil="rm /run/docker-daemon")[1]
