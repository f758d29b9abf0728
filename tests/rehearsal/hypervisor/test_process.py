"""A node that is a folder: user-data, units and systemctl as on a machine, and an end that leaves nothing."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.process import cloudconfig, units
from rehearsal.hypervisor.process.backend import ProcessBackend
from rehearsal.hypervisor.processes import marked
from rehearsal.hypervisor.registry import sweep
from tests.polling import eventually

UNIT = """[Unit]
Description=test
[Service]
Type={kind}
ExecStart=/bin/sh -c '{script}'
Restart={restart}
RestartSec=0.1
TimeoutStopSec=2
"""


def user_data(services: dict[str, str], start: list[str]) -> str:
    files = [{"path": f"/etc/systemd/system/{name}.service", "content": text} for name, text in services.items()]
    commands = [["systemctl", "daemon-reload"], *(["systemctl", "enable", "--now", "--no-block", one] for one in start)]
    return "#cloud-config\n" + yaml.safe_dump({"write_files": files, "runcmd": commands})


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[ProcessBackend]:
    made = ProcessBackend(tmp_path)
    yield made
    sweep(tmp_path)
    assert not marked(tmp_path)


def boot(backend: ProcessBackend, services: dict[str, str], start: list[str]) -> Path:
    backend.boot(
        NodeSpec(
            id="i-1",
            address="127.0.0.1",
            user_data=user_data(services, start),
            metadata_endpoint="http://127.0.0.1:1",
            environment={"EXTRA": "yes"},
        )
    )
    return backend.root("i-1")


def unit(script: str, kind: str = "exec", restart: str = "no") -> str:
    return UNIT.format(script=script, kind=kind, restart=restart)


def test_user_data_starts_its_unit_with_the_nodes_environment(backend: ProcessBackend) -> None:
    root = boot(backend, {"a": unit("echo $EXTRA $TRAINYARD_ROOT; exec sleep 60")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and log.read_text() == f"yes {root}\n", "the unit's output")


def test_a_units_environment_comes_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "10-a.conf").write_text("# why\nCUDA_HOME=/usr/local/cuda\nWORDS='two words'\n")
    unit = units.parse("a", f"[Service]\nExecStart=/bin/true\nEnvironmentFile=-{tmp_path}/*.conf\n")
    assert unit.environment == {"CUDA_HOME": "/usr/local/cuda", "WORDS": "two words"}
    with pytest.raises(ValueError, match="matches no file"):
        units.parse("a", f"[Service]\nExecStart=/bin/true\nEnvironmentFile={tmp_path}/*.txt\n")


def test_a_failed_unit_is_started_again(backend: ProcessBackend) -> None:
    root = boot(backend, {"a": unit("echo once; exit 3", restart="on-failure")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, "the third start")


def test_a_oneshot_that_ended_well_is_not(backend: ProcessBackend) -> None:
    text = unit("echo once", kind="oneshot", restart="on-failure").replace("Type=", "RemainAfterExit=yes\nType=")
    root = boot(backend, {"a": text}, ["a.service"])
    systemctl = [str(root / "usr/bin/systemctl"), "is-active", "a.service"]
    environment = {"TRAINYARD_ROOT": str(root), "PATH": "/usr/bin:/bin"}

    def active() -> bool:
        done = subprocess.run(systemctl, env=environment, capture_output=True, text=True, check=False)
        return done.stdout == "active\n"

    eventually(active, "the unit's success")
    assert (root / "var/log/a.service.log").read_text() == "once\n"


def test_stop_lets_services_end_and_kill_does_not_ask(backend: ProcessBackend) -> None:
    script = 'trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.1; done'
    text = f"[Service]\nType=exec\nExecStart=/bin/sh -c '{script}'\nTimeoutStopSec=5\n"
    root = boot(backend, {"a": text}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and "up" in log.read_text(), "the start")
    backend.stop("i-1")
    eventually(lambda: not backend.alive("i-1"), "the node's end")
    assert "bye" in log.read_text()


def test_kill_ends_also_what_left_its_session(backend: ProcessBackend, tmp_path: Path) -> None:
    root = boot(backend, {"a": unit("setsid sleep 60 & setsid sleep 61 & echo up; wait")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and "up" in log.read_text(), "the start")
    backend.kill("i-1")
    assert not marked(tmp_path)


def test_the_power_cut_of_the_hypervisor_ends_the_node(backend: ProcessBackend, tmp_path: Path) -> None:
    boot(backend, {"a": unit("setsid sleep 60 & wait")}, ["a.service"])
    eventually(lambda: len(marked(tmp_path)) > 2, "the service")
    stdin = backend._nodes["i-1"].stdin
    assert stdin is not None
    stdin.close()
    eventually(lambda: not backend.alive("i-1"), "the node's end")
    eventually(lambda: not marked(tmp_path), "the end of its processes")


def test_user_data_that_asks_for_more_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"keys that are not rehearsed: \['packages'\]"):
        cloudconfig.parse("#cloud-config\npackages: [htop]\n")


def test_a_unit_key_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Service\.Nice is not rehearsed"):
        units.parse("a.service", "[Service]\nExecStart=/bin/true\nNice=5\n")


def test_a_folder_is_not_booted_from_an_image_of_another(backend: ProcessBackend) -> None:
    spec = NodeSpec(id="i-2", address="127.77.250.9", user_data="", metadata_endpoint="", environment={}, made_of="i-1")
    with pytest.raises(RuntimeError, match="i-2 boots from an image of i-1, and a node that is a folder has none"):
        backend.boot(spec)
