"""A worker that makes its Python environments itself, of wheels mirrored to S3, and makes newer ones beside them."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.packaging.bundle import FILES, FOLDERS, pack_bundle
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.nspawn.network import GATEWAY
from tests.nodes import ROOT, Cloud, cloud
from tests.polling import eventually
from tests.served import Served
from tests.wheels import STAND_INS
from trainyard.operations.startup import Plays

pytestmark = pytest.mark.booted
PREFIX = "wheels/"
MAKE_SECONDS = 300.0
AWAY_SECONDS = 60.0


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the bundle is packed from; its job asks for packages that stand in for torch, which is 5 GB."""
    copy = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    (copy / "trainer/requirements.txt").write_text("".join(f"{one.name}=={one.version}\n" for one in STAND_INS))
    (copy / "constraints.txt").write_text(own_constraints(""))
    return copy


def own_constraints(more: str) -> str:
    names = {one.name for one in STAND_INS}
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.split("==")[0].split("[")[0] not in names) + more


@pytest.fixture(scope="module")
def wheels(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """As docs/deploy.md fills a mirror."""
    folder = tmp_path_factory.mktemp("wheels")
    lists = ["-r", str(tree / "trainyard/node/requirements.txt"), "-c", str(tree / "constraints.txt")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--dest", str(folder), *lists]
    subprocess.run(command, check=True, timeout=MAKE_SECONDS)
    for one in STAND_INS:
        shutil.move(one.build(folder), folder)
    shutil.rmtree(folder / "simple")
    return list(folder.iterdir())


@pytest.fixture(scope="module")
def place(
    tree: Path, wheels: list[Path], tmp_path_factory: pytest.TempPathFactory, own_account: EmulatedAws
) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("place"), own_account, pack_bundle(tree)) as made:
        for wheel in wheels:
            made.data.write(f"{PREFIX}{wheel.name}", wheel.read_bytes())
        made.publish(venv=None, package_index=f"s3://{made.data.name}/{PREFIX}", variables={"refresh_seconds": 1})
        yield made


@pytest.fixture(scope="module")
def node(place: Cloud) -> str:
    name = place.launch()
    assert place.play(name, 1, MAKE_SECONDS).status == "ok", place.machine(name).journal()
    return name


def sh(place: Cloud, node: str, script: str) -> str:
    return place.machine(node).run("/bin/sh", "-ec", script).stdout.strip()


def test_play_and_agent_run_from_the_environment_that_the_node_has_made(place: Cloud, node: str) -> None:
    eventually(lambda: place.ready(node), "the agent's word")
    made = sh(place, node, "readlink -f /opt/trainyard/venv")
    assert made.startswith("/opt/trainyard/venvs/")
    agent = sh(place, node, "systemctl show -p ExecStart --value trainyard-job.service")
    assert f"{made}/bin/python" in agent


def test_the_job_has_one_of_its_own(place: Cloud, node: str) -> None:
    names = ", ".join(one.name for one in STAND_INS)
    assert sh(place, node, f"/opt/trainyard/job-venv/bin/python -c 'import {names}; print(torch.__file__)'").startswith(
        "/opt/trainyard/job-venv/"
    )


def test_a_second_play_makes_neither_again(place: Cloud, node: str) -> None:
    again = place.again(node)
    assert (again.status, place.changed(node)) == ("ok", [])


def test_newer_ones_are_made_beside_those_that_run(place: Cloud, node: str, tree: Path) -> None:
    before, agent = (
        sh(place, node, "readlink -f /opt/trainyard/venv"),
        "systemctl show -p MainPID --value trainyard-job",
    )
    process, plays = sh(place, node, agent), len(place.plays(node))
    machine = place.machine(node)
    machine.run("systemctl", "kill", "--signal=STOP", "trainyard-job.service")  # busy, as with a job
    (tree / "constraints.txt").write_text(own_constraints("# newer\n"))
    place.publish(pack_bundle(tree))
    assert place.play(node, plays + 1, MAKE_SECONDS).status == "ok"
    assert sh(place, node, "readlink -f /opt/trainyard/venv") != before
    assert sh(place, node, agent) == process
    assert sh(place, node, f"ls {before}/made") == f"{before}/made"


def test_an_index_that_is_away_for_a_minute_ends_no_launch(place: Cloud, wheels: list[Path]) -> None:
    index = Served(wheels[0].parent, place.backend.network)
    index.back()
    index.away()
    place.publish(package_index=index.url)
    name = place.launch()
    # pip asks for TLS, which the test's server has not.
    machine = place.machine(name)
    eventually(lambda: machine.state() in ("starting", "running", "degraded"), "its boot")
    machine.write("/etc/pip.conf", f"[global]\ntrusted-host = {GATEWAY}\n")
    back = threading.Timer(AWAY_SECONDS, index.back)
    back.start()
    began = time.time()
    eventually(lambda: any(one.status == "ok" for one in place.plays(name)), "the play with an index", MAKE_SECONDS)
    back.join()
    index.close()
    plays = Plays()
    for event in place.events(name):
        plays.hear(event)
        assert not plays.failed(name, "0001"), plays.message
    assert place.plays(name)[-1].time > began + AWAY_SECONDS  # the outage was met
