"""The role `container` on booted machines, with a stand-in for Docker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, BootedMachine, PlaybookResult, boot_machine
from tests.playbooks.roles.containers import IMAGE, container_toolkit, docker
from trainyard.node.agent.job_container import CLIENT_VARIABLES, VARIABLE_PREFIX
from trainyard.node.identity import CONTAINER_NAME, CONTAINER_WRAPPER
from trainyard.node.job_user import JOB_USER

pytestmark = pytest.mark.booted

SCRATCH = "/opt/trainyard/scratch"
ON_SCRATCH = {"container_image": IMAGE, "container_data_root": f"{SCRATCH}/docker"}
MOUNT = f"mount -t tmpfs tmpfs {SCRATCH}"
GPU = "mknod /dev/nvidia0 c 1 3"
WRAPPER = f"/opt/trainyard/{CONTAINER_WRAPPER}"
NAMES = {
    "container_name": CONTAINER_NAME,
    "container_wrapper": WRAPPER,
    "container_user": JOB_USER,
    "container_variable_prefix": VARIABLE_PREFIX,
    "container_client_variables": CLIENT_VARIABLES,
}
VERIFY = f"{ROOT}/playbooks/roles/container/files/verify.sh"


class Node:
    """A machine with the repositories of its distribution and of NVIDIA."""

    def __init__(self, machine: BootedMachine, nvidia: Repository) -> None:
        self.machine, self.nvidia, self.run_script = machine, nvidia, machine.run_script

    def run_role(self, **variables: Any) -> PlaybookResult:
        source = {"": self.nvidia.url, "_key": self.nvidia.key_url, "_fingerprint": self.nvidia.fingerprint}
        repository = {f"container_repository{name}": value for name, value in source.items()}
        return self.machine.run_role("container", **NAMES, **repository, **variables)

    def daemon_settings(self) -> dict[str, Any]:
        """Content of the daemon's settings file."""
        settings: dict[str, Any] = json.loads(self.run_script("cat /etc/docker/daemon.json"))
        return settings

    def docker_calls(self) -> list[list[str]]:
        """Arguments of each call of `docker`, in order."""
        return [json.loads(line) for line in self.run_script("cat /run/docker-calls").splitlines()]


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("container")
    with (
        boot_machine(folder / "node", NO_SOURCES) as node,
        repository(folder / "distribution", node.network) as distribution,
        repository(folder / "nvidia", node.network) as nvidia,
    ):
        helper = {"/usr/bin/docker-credential-ecr-login": "#!/bin/sh\n"}
        distribution.add(
            docker("docker.io"), docker("docker-ce"), Package(name="amazon-ecr-credential-helper", files=helper)
        )
        distribution.add_source_to(node, "distribution")
        for version in ("1.17.4", "1.18.0", "1.20.0", "1.21.0"):
            nvidia.add(*container_toolkit(version))
        node.run_script(f"useradd --system {JOB_USER}")
        yield Node(node, nvidia)


def test_docker_and_toolkit_are_pinned_held_and_configured(node: Node) -> None:
    first = node.run_role()
    assert first.exit_code == 0, first.output
    assert node.run_script("dpkg-query -W -f '${Version}' nvidia-container-toolkit") == "1.20.0-1"
    assert {"docker.io", "nvidia-container-toolkit"} <= set(node.run_script("apt-mark showhold").split())
    node.run_script("systemctl is-enabled docker; systemctl is-active docker")
    assert node.daemon_settings() == {
        "bridge": "none",
        "ip6tables": False,
        "iptables": False,
        "live-restore": True,
        "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
    }
    second = node.run_role()
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_docker_toolkit_and_settings_of_an_image_are_kept(node: Node) -> None:
    node.nvidia.add_source_to(node.machine, "image")
    node.run_script("apt-get install -qy docker-ce nvidia-container-toolkit-base=1.18.0-1; mkdir /etc/docker")
    node.machine.write_file("/etc/docker/daemon.json", '{"mtu": 9001, "runtimes": {"kata": {"path": "kata"}}}')
    node.nvidia.stop()  # the role must not contact it
    result = node.run_role()
    assert result.exit_code == 0, result.output
    assert "installed" not in node.run_script("dpkg-query -W -f '${db:Status-Status}' docker.io").split()
    assert node.daemon_settings()["mtu"] == 9001
    assert set(node.daemon_settings()["runtimes"]) == {"kata", "nvidia"}


def test_a_vulnerable_toolkit_is_replaced(node: Node) -> None:
    node.nvidia.add_source_to(node.machine, "image")
    node.run_script(
        "apt-get install -qy nvidia-container-toolkit-base=1.17.4-1; apt-mark hold nvidia-container-toolkit-base"
    )
    assert node.run_role().exit_code == 0
    assert node.run_script("dpkg-query -W -f '${Version}' nvidia-container-toolkit-base") == "1.20.0-1"


def test_settings_that_docker_refuses_are_not_written(node: Node) -> None:
    node.run_script("mkdir /etc/docker")
    node.machine.write_file("/etc/docker/daemon.json", '{"no-such-setting": 1}')
    result = node.run_role()
    assert result.exit_code == 2
    assert "Docker refuses the new settings for /etc/docker/daemon.json" in result.failure
    assert node.daemon_settings() == {"no-such-setting": 1}
    assert node.run_script("ls /etc/docker") == "daemon.json\n"


def test_docker_is_restarted_after_a_run_that_was_interrupted_before_the_restart(node: Node) -> None:
    assert node.run_role().exit_code == 0
    node.run_script("echo '{}' > /run/docker-daemon")  # the running daemon has other settings than the file
    second = node.run_role()
    assert second.exit_code == 0, second.output
    assert "nvidia" in node.run_script("cat /run/docker-daemon")


def test_the_image_is_pulled_into_the_data_root(node: Node) -> None:
    node.run_script(f"touch /run/fails; {GPU}")  # the first pull fails
    result = node.run_role(**ON_SCRATCH)
    assert result.exit_code == 0, result.output
    assert node.daemon_settings()["data-root"] == f"{SCRATCH}/docker"
    assert node.daemon_settings()["features"] == {"containerd-snapshotter": False}
    assert node.run_script(f"cat {SCRATCH}/docker/images") == IMAGE
    assert node.run_role(**ON_SCRATCH).changed_tasks == ()


def test_docker_does_not_start_before_its_data_root_is_mounted(node: Node) -> None:
    node.run_script(f"{GPU}; mkdir -p {SCRATCH}; {MOUNT}")
    assert node.run_role(**ON_SCRATCH).exit_code == 0
    node.machine.reboot()
    assert node.run_script(f"systemctl is-enabled docker; ls {SCRATCH}") == "enabled\n"
    assert node.run_script("systemctl is-active docker || true") == "inactive\n"
    node.run_script(f"{GPU}; {MOUNT}")
    result = node.run_role(**ON_SCRATCH)
    assert result.exit_code == 0, result.output
    node.run_script(f"systemctl is-active docker; ls {SCRATCH}/docker/volumes")


def test_docker_that_started_before_the_mount_is_restarted(node: Node) -> None:
    node.run_script(GPU)
    assert node.run_role(**ON_SCRATCH).exit_code == 0
    node.run_script(f"{MOUNT}; mkdir {SCRATCH}/docker")
    process = node.machine.machine.run_command("sh", VERIFY, "gpus", "1.17.8", f"{SCRATCH}/docker", "", WRAPPER)
    assert (process.returncode, process.stderr) == (
        1,
        f"Docker was started before {SCRATCH}/docker was mounted, and writes to the directory below the mount\n",
    )
    result = node.run_role(**ON_SCRATCH)
    assert result.exit_code == 0, result.output
    node.run_script(f"ls {SCRATCH}/docker/volumes")
    assert node.run_role(**ON_SCRATCH).changed_tasks == ()


def test_a_builder_does_not_pull_the_image(node: Node) -> None:
    result = node.run_role(container_image=IMAGE, container_pull_image=False)
    assert result.exit_code == 0, result.output
    node.run_script("! test -e /var/lib/docker/images")


def test_an_ecr_image_is_pulled_with_the_iam_role_of_the_node(node: Node) -> None:
    registry = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
    result = node.run_role(container_image=f"{registry}/pytorch-training:2.9", container_gpus=False)
    assert result.exit_code == 0, result.output
    assert json.loads(node.run_script("cat /root/.docker/config.json")) == {"credHelpers": {registry: "ecr-login"}}
    node.run_script("! dpkg-query -W nvidia-container-toolkit")
    assert "runtimes" not in node.daemon_settings()


def test_the_wrapper_passes_network_devices_memory_and_environment_of_the_node(node: Node) -> None:
    assert node.run_role(container_mounts=["/opt/trainyard", "/fsx"]).exit_code == 0
    node.run_script(
        "mkdir /dev/infiniband; mknod /dev/infiniband/uverbs0 c 1 3; mknod /dev/nvidia0 c 1 3; mkdir -p /opt/job"
    )
    node.run_script("rm /run/docker-calls; mkdir /dev/nvidia-caps; touch /dev/nvidiactl")  # a regular file
    node.run_script("mkdir -p /opt/trainyard/runs/logs; mkdir -p /fsx")
    writable = "--writable=/opt/trainyard/runs/logs --writable=/fsx"
    script = (
        "cd /opt/job; status=0; env HOME=/opt/trainyard/home HF_TOKEN='s3 cret' RANK=3 LD_LIBRARY_PATH=/x "
        "INVOCATION_ID=1 "
        f"{WRAPPER} {writable} {IMAGE} torchrun --master 'a b' \"$HOME\" || status=$?; echo $status"
    )
    assert node.run_script(script) == "7\n"  # the exit status of the container
    remove, run = node.docker_calls()
    user = ":".join(node.run_script(f"id -u {JOB_USER}; id -g {JOB_USER}").split())
    assert remove == ["rm", "--force", CONTAINER_NAME]
    position = run.index(IMAGE)
    assert run[position:] == [IMAGE, "torchrun", "--master", "a b", "/root"]
    options = set(run[1:position])
    assert options >= {
        *("--rm", "--init", f"--name={CONTAINER_NAME}", "--network=host", "--ipc=host", "--ulimit=memlock=-1"),
        *("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all", "--device=/dev/nvidia0", "--workdir=/opt/job"),
        *("--device=/dev/infiniband/uverbs0", "--env=HF_TOKEN", "--env=RANK", "--env=HOME"),
        *("--mount=type=bind,source=/opt/trainyard,target=/opt/trainyard,readonly",),
        *(f"--mount=type=bind,source={each},target={each}" for each in ("/opt/trainyard/runs/logs", "/fsx")),
        f"--user={user}",
        *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
    }
    assert not any(option.startswith("--cap-add") for option in options)
    assert not options & {"--env=LD_LIBRARY_PATH", "--env=INVOCATION_ID", "--env=PATH", "--device=/dev/nvidiactl"}
    assert "s3 cret" not in " ".join(run)


def test_without_gpus_the_container_requests_none(node: Node) -> None:
    assert node.run_role(container_gpus=False).exit_code == 0
    node.run_script(f"rm /run/docker-calls; {WRAPPER} {IMAGE} true || true")
    assert not [option for option in node.docker_calls()[-1] if "nvidia" in option.lower() and option != IMAGE]


def test_a_docker_service_that_does_not_start_is_reported(node: Node) -> None:
    assert node.run_role().exit_code == 0
    node.run_script("rm /run/docker-daemon; sed -i '2iraise SystemExit(1)' /usr/bin/dockerd")
    result = node.run_role()
    assert result.exit_code == 2
    assert "Unable to restart service docker.service" in result.failure


def test_the_verification_reports_each_problem(node: Node) -> None:
    assert node.run_role().exit_code == 0
    good = ("gpus", "1.17.8", "", "", WRAPPER)

    def verify(*arguments: str, change: str = "true") -> tuple[int, str]:
        node.run_script(change)
        process = node.machine.machine.run_command("sh", VERIFY, *arguments)
        return process.returncode, process.stderr

    assert verify(*good) == (0, "")
    assert verify("gpus", "2.0", *good[2:]) == (1, "the NVIDIA Container Toolkit is 1.20.0, older than 2.0\n")
    other_paths = verify("gpus", "1.17.8", "/nvme", IMAGE, "/opt/wrapper")
    assert other_paths == (
        1,
        "Docker stores its images in /var/lib/docker, not in /nvme\n"
        f"/opt/wrapper is not an executable file\nthe image {IMAGE} is not pulled\n",
    )
    with_image = ("gpus", "1.17.8", "", IMAGE, WRAPPER)
    without_gpu = verify(*with_image, change=f"echo {IMAGE} > /var/lib/docker/images")
    assert without_gpu == (1, f"a container of {IMAGE} does not run Python: it has no GPU\n")
    assert verify(*with_image, change=GPU) == (0, "")
    without_folder = verify(*with_image, change="rmdir /etc/trainyard")
    assert without_folder[1].endswith("bind source path does not exist: /etc/trainyard\n")
    node.run_script("mkdir /etc/trainyard")
    with_data = ("gpus", "1.17.8", "/var/lib/docker", *with_image[3:])
    other_paths = verify(*with_data)
    assert other_paths == (1, f"the image {IMAGE} is stored in containerd, not in /var/lib/docker\n")
    without_runtime = verify(*good, change="rm /usr/bin/nvidia-container-runtime")
    assert without_runtime == (1, "nvidia-container-runtime is not installed\n")
    assert "and not nvidia" in verify(*good, change="echo '{}' > /run/docker-daemon")[1]
    assert "docker info fails" in verify(*good, change="rm /run/docker-daemon")[1]
