"""A worker creates its Python environments from wheels in S3, and newer environments next to those in use."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.packaging.bundle import FOLDERS, pack_bundle
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.nspawn.network import GATEWAY
from tests.file_server import FileServer
from tests.nodes import ROOT, BootedCluster, boot_cluster
from tests.polling import eventually
from tests.wheels import STUB_WHEELS, lock_text
from trainyard.models.startup_failures import PlaybookFailures

pytestmark = pytest.mark.booted
PREFIX = "wheels/"
TIMEOUT_SECONDS = 300.0
OUTAGE_SECONDS = 60.0
# `systemctl service-watchdogs no` ends with each daemon-reload of the playbook. WatchdogSec applies from a start on.
WITHOUT_WATCHDOG = """
mkdir -p /run/systemd/system/trainyard-job.service.d
printf '[Service]\nWatchdogSec=0\n' > /run/systemd/system/trainyard-job.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart trainyard-job.service
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources of the bundle; the job requires stub packages instead of torch, which has 5 GB."""
    copy = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name)
    (copy / "trainer/requirements.in").write_text("".join(f"{stub.name}=={stub.version}\n" for stub in STUB_WHEELS))
    shutil.rmtree(copy / "trainer/wheels")
    return copy


@pytest.fixture(scope="module")
def wheels(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Download the wheels as docs/deploy.md describes it for a mirror, and lock the stub packages."""
    folder = tmp_path_factory.mktemp("wheels")
    lock = str(tree / "trainyard/node/requirements.txt")
    command = [sys.executable, "-m", "pip", "download", "-q", "--dest", str(folder), "-r", lock]
    subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)
    stubs = [Path(shutil.move(stub.build(folder), folder)) for stub in STUB_WHEELS]
    shutil.rmtree(folder / "simple")
    (tree / "trainer/requirements.txt").write_text(lock_text(stubs))
    return list(folder.iterdir())


@pytest.fixture(scope="module")
def cluster(
    tree: Path, wheels: list[Path], tmp_path_factory: pytest.TempPathFactory, own_account: EmulatedAws
) -> Iterator[BootedCluster]:
    with boot_cluster(tmp_path_factory.mktemp("cluster"), own_account, pack_bundle(tree)) as cluster:
        for wheel in wheels:
            cluster.data.write(f"{PREFIX}{wheel.name}", wheel.read_bytes())
        index = f"s3://{cluster.data.name}/{PREFIX}"
        cluster.publish_manifest(venv=None, package_index=index, variables={"refresh_interval_seconds": 1})
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: BootedCluster) -> str:
    name = cluster.launch_worker()
    assert cluster.wait_for_playbook(name, 1, TIMEOUT_SECONDS).status == "ok", cluster.machine(name).read_journal()
    return name


def run_script(cluster: BootedCluster, node: str, script: str) -> str:
    return cluster.machine(node).run_command("/bin/sh", "-ec", script).stdout.strip()


def test_the_agent_runs_from_the_environment_that_the_node_has_created(cluster: BootedCluster, node: str) -> None:
    eventually(lambda: cluster.is_ready(node), "the agent's readiness")
    environment = run_script(cluster, node, "readlink -f /opt/trainyard/venv")
    assert environment.startswith("/opt/trainyard/venvs/")
    agent = run_script(cluster, node, "systemctl show -p ExecStart --value trainyard-job.service")
    assert f"{environment}/bin/python" in agent


def test_the_job_has_a_separate_environment(cluster: BootedCluster, node: str) -> None:
    names = ", ".join(stub.name for stub in STUB_WHEELS)
    assert run_script(
        cluster, node, f"/opt/trainyard/job-venv/bin/python -c 'import {names}; print(torch.__file__)'"
    ).startswith("/opt/trainyard/job-venv/")


def test_a_second_run_creates_no_environment(cluster: BootedCluster, node: str) -> None:
    second = cluster.rerun_playbook(node)
    assert (second.status, cluster.changed_tasks(node)) == ("ok", [])


def test_newer_environments_do_not_replace_environments_in_use(cluster: BootedCluster, node: str, tree: Path) -> None:
    before, agent = (
        run_script(cluster, node, "readlink -f /opt/trainyard/venv"),
        "systemctl show -p MainPID --value trainyard-job",
    )
    run_script(cluster, node, WITHOUT_WATCHDOG)
    process, runs = run_script(cluster, node, agent), len(cluster.playbook_events(node))
    cluster.machine(node).run_command("systemctl", "kill", "--signal=STOP", "trainyard-job.service")  # busy
    for lock in ("trainyard/node/requirements.txt", "trainer/requirements.txt"):
        (tree / lock).write_text((tree / lock).read_text() + "# newer\n")
    cluster.publish_manifest(pack_bundle(tree))
    assert cluster.wait_for_playbook(node, runs + 1, TIMEOUT_SECONDS).status == "ok"
    assert run_script(cluster, node, "readlink -f /opt/trainyard/venv") != before
    assert run_script(cluster, node, agent) == process
    assert run_script(cluster, node, f"ls {before}/complete") == f"{before}/complete"


def test_an_index_outage_of_one_minute_does_not_fail_the_launch(cluster: BootedCluster, wheels: list[Path]) -> None:
    index = FileServer(wheels[0].parent, cluster.backend.network)
    index.start()
    index.stop()
    cluster.publish_manifest(package_index=index.url)
    name = cluster.launch_worker()
    # pip requires TLS, which the test server does not support.
    machine = cluster.machine(name)
    eventually(lambda: machine.systemd_state() in ("starting", "running", "degraded"), "the boot")
    machine.write_file("/etc/pip.conf", f"[global]\ntrusted-host = {GATEWAY}\n")
    restart = threading.Timer(OUTAGE_SECONDS, index.start)
    restart.start()
    started = time.time()
    eventually(
        lambda: any(event.status == "ok" for event in cluster.playbook_events(name)),
        "a successful run of the playbook",
        TIMEOUT_SECONDS,
    )
    restart.join()
    index.close()
    failures = PlaybookFailures()
    for event in cluster.events(name):
        failures.handle(event)
        assert not failures.is_final(name, "0001"), failures.messages
    assert (
        cluster.playbook_events(name)[-1].time > started + OUTAGE_SECONDS
    )  # the playbook has waited for the end of the outage
