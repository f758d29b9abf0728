"""Nodes of the process backend: user data, units, systemctl, and shutdown without leftovers."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
import yaml

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.process import cloudconfig, units
from rehearsal.hypervisor.process.backend import ProcessBackend
from rehearsal.hypervisor.processes import find_processes
from rehearsal.hypervisor.registry import remove_leftovers
from tests.machines import ROOT
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
    """Return user data that writes units and starts some of them."""
    files = [{"path": f"/etc/systemd/system/{name}.service", "content": text} for name, text in services.items()]
    commands = [
        ["systemctl", "daemon-reload"],
        *(["systemctl", "enable", "--now", "--no-block", name] for name in start),
    ]
    return "#cloud-config\n" + yaml.safe_dump({"write_files": files, "runcmd": commands})


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[ProcessBackend]:
    """A backend whose processes are killed after the test, in a folder whose path must be quoted."""
    folder = tmp_path / "a rehearsal \u00fc"
    folder.mkdir()
    yield ProcessBackend(folder)
    remove_leftovers(folder)
    assert not find_processes(folder)


def node_spec(services: dict[str, str], start: list[str]) -> NodeSpec:
    """Return the description of the node i-1."""
    return NodeSpec(
        id="i-1",
        address="127.0.0.1",
        user_data=user_data(services, start),
        metadata_endpoint="http://127.0.0.1:1",
        environment={"EXTRA": "yes"},
    )


def boot(backend: ProcessBackend, services: dict[str, str], start: list[str]) -> Path:
    """Boot the node i-1. Returns its root folder."""
    backend.boot(node_spec(services, start))
    return backend.root("i-1")


def unit(script: str, kind: str = "exec", restart: str = "no") -> str:
    """Return a unit file that runs a shell script."""
    return UNIT.format(script=script, kind=kind, restart=restart)


def test_user_data_starts_a_unit_with_the_nodes_environment(backend: ProcessBackend) -> None:
    root = boot(backend, {"a": unit("echo $EXTRA $TRAINYARD_ROOT; exec sleep 60")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and log.read_text() == f"yes {root}\n", "the output of the unit")


def test_unit_reads_environment_files(tmp_path: Path) -> None:
    (tmp_path / "10-a.conf").write_text("# comment\nCUDA_HOME=/usr/local/cuda\nWORDS='two words'\n")
    unit = units.parse("a", f"[Service]\nExecStart=/bin/true\nEnvironmentFile=-{tmp_path}/*.conf\n")
    assert unit.environment == {"CUDA_HOME": "/usr/local/cuda", "WORDS": "two words"}
    with pytest.raises(ValueError, match="matches no file"):
        units.parse("a", f"[Service]\nExecStart=/bin/true\nEnvironmentFile={tmp_path}/*.txt\n")


def test_path_of_programs_has_no_spaces(backend: ProcessBackend) -> None:
    """Ansible does not quote the paths of systemctl and of its scripts."""
    root = boot(backend, {"a": unit("command -v systemctl; echo $ANSIBLE_REMOTE_TEMP; exec sleep 60")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and len(log.read_text().splitlines()) == 2, "the output of the unit")
    systemctl, temporary = map(Path, log.read_text().splitlines())
    assert " " not in f"{systemctl}{temporary}"
    assert (systemctl.resolve(), temporary.resolve()) == (root / "usr/bin/systemctl", root / "tmp")


def test_interpreter_in_a_path_with_spaces_starts(
    backend: ProcessBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "a venv"
    link.symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "executable", str(link / "bin/python"))
    root = boot(backend, {"a": unit("python3 -c 0 && echo started")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and log.read_text() == "started\n", "the output of the unit")


def test_failed_unit_is_restarted(backend: ProcessBackend) -> None:
    root = boot(backend, {"a": unit("echo once; exit 3", restart="on-failure")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, "the third start")


def test_successful_oneshot_unit_is_not_restarted(backend: ProcessBackend) -> None:
    text = unit("echo once", kind="oneshot", restart="on-failure").replace("Type=", "RemainAfterExit=yes\nType=")
    root = boot(backend, {"a": text}, ["a.service"])
    systemctl = [str(root / "usr/bin/systemctl"), "is-active", "a.service"]
    environment = {"TRAINYARD_ROOT": str(root), "PATH": "/usr/bin:/bin"}

    def is_active() -> bool:
        process = subprocess.run(systemctl, env=environment, capture_output=True, text=True, check=False)
        return process.stdout == "active\n"

    eventually(is_active, "the active state of the unit")
    assert (root / "var/log/a.service.log").read_text() == "once\n"


def test_stop_sends_sigterm_before_sigkill(backend: ProcessBackend) -> None:
    script = 'trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.1; done'
    text = f"[Service]\nType=exec\nExecStart=/bin/sh -c '{script}'\nTimeoutStopSec=5\n"
    root = boot(backend, {"a": text}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and "up" in log.read_text(), "the start of the service")
    backend.stop("i-1")
    eventually(lambda: not backend.is_running("i-1"), "the shutdown of the node")
    assert "bye" in log.read_text()


def test_kill_also_ends_processes_in_other_sessions(backend: ProcessBackend) -> None:
    root = boot(backend, {"a": unit("setsid sleep 60 & setsid sleep 61 & echo up; wait")}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and "up" in log.read_text(), "the start of the service")
    backend.kill("i-1")
    assert not find_processes(backend.folder)


def test_closing_stdin_ends_the_node(backend: ProcessBackend) -> None:
    boot(backend, {"a": unit("setsid sleep 60 & wait")}, ["a.service"])
    eventually(lambda: len(find_processes(backend.folder)) > 2, "the start of the service")
    stdin = backend._nodes["i-1"].stdin
    assert stdin is not None
    stdin.close()
    eventually(lambda: not backend.is_running("i-1"), "the shutdown of the node")
    eventually(lambda: not find_processes(backend.folder), "the end of its processes")


def test_unsupported_user_data_key_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"unsupported keys: \['packages'\]"):
        cloudconfig.parse("#cloud-config\npackages: [htop]\n")


def test_unsupported_unit_key_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Service\.Nice is not supported"):
        units.parse("a.service", "[Service]\nExecStart=/bin/true\nNice=5\n")


def test_baked_image_cannot_boot(backend: ProcessBackend) -> None:
    spec = NodeSpec(
        id="i-2", address="127.77.250.9", user_data="", metadata_endpoint="", environment={}, image_source="i-1"
    )
    with pytest.raises(
        RuntimeError, match="i-2 boots from an image of i-1, which the process backend does not support"
    ):
        backend.boot(spec)


@pytest.mark.parametrize("role", ["controller", "job", "refresh"])
def test_units_of_the_roles_are_supported(role: str) -> None:
    (template,) = (ROOT / f"playbooks/roles/{role}/templates").glob("*.service.j2")
    text = jinja2.Template(template.read_text()).render({f"{role}_python": "python"})
    assert units.parse(template.stem, text).command


def systemd(root: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run systemctl or systemd-run on the node."""
    program, *arguments = command
    environment = {"TRAINYARD_ROOT": str(root), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [str(root / "usr/bin" / program), *arguments], env=environment, capture_output=True, text=True, check=False
    )


TRANSIENT = ("systemd-run", "--quiet", "--collect", "--unit=t.service", "--service-type=exec")


def test_transient_unit_outlives_the_unit_that_started_it(backend: ProcessBackend) -> None:
    script = f"{shlex.join(TRANSIENT)} sleep 600; setsid -f sleep 601; echo up; kill -9 $$"
    root = boot(backend, {"a": unit(script)}, ["a.service"])
    eventually(lambda: systemd(root, "systemctl", "is-active", "a.service").stdout == "failed\n", "the end of the unit")
    assert systemd(root, "systemctl", "is-active", "t.service").stdout == "active\n"
    commands = [shlex.join(process.cmdline()) for process in find_processes(backend.folder)]
    assert "sleep 600" in commands
    assert "sleep 601" not in commands  # the rest of the first unit


def test_transient_unit_is_unloaded_when_it_ends(backend: ProcessBackend) -> None:
    root = boot(backend, {}, [])
    eventually((root / "run/init").exists, "the init process")
    assert systemd(root, *TRANSIENT, "--property=KillMode=mixed", "sh", "-c", "exit 1").returncode == 0

    def is_unloaded() -> bool:
        return "LoadState=not-found" in systemd(root, "systemctl", "show", "t.service").stdout

    eventually(is_unloaded, "the end of the unit")
    assert systemd(root, *TRANSIENT, "sleep", "600").returncode == 0
    assert systemd(root, *TRANSIENT, "sleep", "600").stderr.startswith("Unit t.service was already loaded")


def test_stop_waits_for_the_end_of_a_unit_and_kill_ends_it_at_once(backend: ProcessBackend) -> None:
    root = boot(backend, {}, [])
    eventually((root / "run/init").exists, "the init process")
    ignoring = ("--property=TimeoutStopSec=1", "sh", "-c", 'trap "" TERM; while :; do sleep 0.1; done')
    for stop in (("stop",), ("kill", "--signal=SIGKILL")):
        systemd(root, *TRANSIENT, *ignoring)
        systemd(root, "systemctl", *stop, "t.service")
        systemd(root, "systemctl", "stop", "t.service")
        assert systemd(root, "systemctl", "is-active", "t.service").stdout == "inactive\n"


def test_other_options_of_systemd_run_are_an_error(backend: ProcessBackend) -> None:
    root = boot(backend, {}, [])
    eventually((root / "run/init").exists, "the init process")
    ended = systemd(root, "systemd-run", "--wait", "true")
    assert (ended.returncode, ended.stderr) == (1, "systemd-run: --wait is not supported\n")


def test_one_active_unit_of_a_pattern_is_enough(backend: ProcessBackend) -> None:
    root = boot(backend, {"a": unit("exit 0")}, ["a.service"])
    eventually((root / "run/init").exists, "the init process")
    systemd(root, *TRANSIENT, "sleep", "600")
    assert systemd(root, "systemctl", "is-active", "a.service", "t*.service").returncode == 0
    patterns = ("a.service", "b*.service")
    eventually(lambda: systemd(root, "systemctl", "is-active", *patterns).returncode == 3, "the end of a.service")


def test_reboot_stops_all_units_and_starts_enabled_units(backend: ProcessBackend) -> None:
    boot_id = "proc/sys/kernel/random/boot_id"  # relative to the root of the node
    text = unit(f"cat {boot_id}; touch kept run/removed; exec sleep 600")
    root = boot(backend, {"a": text + "[Install]\nWantedBy=multi-user.target\n"}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually((root / "run/removed").exists, "the start of the unit")
    systemd(root, *TRANSIENT, "sleep", "601")
    (root / "run/removed").rename(root / "run/other")
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text("3,1,1,-;NVRM: Xid (PCI:0000:10:1c): 119, Timeout\n")
    assert systemd(root, "systemctl", "reboot").returncode == 0
    eventually(lambda: len(set(log.read_text().split())) == 2, "another boot id in the second start of the unit")
    eventually((root / "run/removed").exists, "the end of that start")
    assert [(root / name).exists() for name in ("kept", "run/other", "dev/kmsg")] == [True, False, False]
    assert systemd(root, "systemctl", "is-active", "a.service").stdout == "active\n"
    commands = [shlex.join(process.cmdline()) for process in find_processes(backend.folder)]
    assert ("sleep 600" in commands, "sleep 601" in commands) == (True, False)


def test_restarted_node_starts_its_enabled_units_although_all_processes_were_suspended(
    backend: ProcessBackend,
) -> None:
    text = unit("cat proc/sys/kernel/random/boot_id; exec sleep 600")
    root = boot(backend, {"a": text + "[Install]\nWantedBy=multi-user.target\n"}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and bool(log.read_text()), "the start of the unit")
    for process in backend.processes("i-1"):
        process.suspend()
    backend.restart("i-1")
    eventually(lambda: len(set(log.read_text().split())) == 2, "another boot id in the second start of the unit")


CLOCK = """import time
while True:
    print(time.time() - time.monotonic(), flush=True)
    time.sleep(0.2)
"""


def test_clock_of_a_node_is_set_to_an_earlier_time(backend: ProcessBackend) -> None:
    backend.allow_clock_steps()
    root = boot(backend, {}, [])
    (root / "clock.py").write_text(CLOCK)
    eventually((root / "run/init").exists, "the init process")
    systemd(root, *TRANSIENT, sys.executable, str(root / "clock.py"))
    log = root / "var/log/t.service.log"
    eventually(lambda: log.exists() and "\n" in log.read_text(), "the time")
    first = float(log.read_text().splitlines()[0])
    backend.step_clock("i-1", -100.0)
    eventually(lambda: float(log.read_text().rstrip("\n").splitlines()[-1]) < first - 99, "another time")


PING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from trainyard.node.watchdog import report_progress, start_watchdog
start_watchdog(main_thread_seconds=0.5)
print("up", flush=True)
for _ in range(int(sys.argv[2])):
    report_progress()
    time.sleep(0.1)
time.sleep(600)
"""


def test_watchdog_restarts_a_service_that_sends_nothing_even_if_it_is_suspended(backend: ProcessBackend) -> None:
    text = unit("echo up; kill -STOP $$; exit 0", restart="on-failure").replace("Type=", "WatchdogSec=1\nType=")
    root = boot(backend, {"a": text}, ["a.service"])
    log = root / "var/log/a.service.log"
    eventually(lambda: log.exists() and log.read_text().count("up") == 3, "the third start")


def test_watchdog_does_not_restart_a_service_that_reports_progress(backend: ProcessBackend, tmp_path: Path) -> None:
    program = tmp_path / "ping.py"
    program.write_text(PING)
    text = unit("", restart="on-failure").replace("Type=", "WatchdogSec=1\nType=")
    text = re.sub("ExecStart=.*", f"ExecStart={sys.executable} {program} {ROOT} 30", text)
    root = boot(backend, {"a": text}, ["a.service"])
    log, started_at = root / "var/log/a.service.log", time.monotonic()
    eventually(lambda: log.exists() and log.read_text().count("up") == 2, "the second start")
    assert time.monotonic() - started_at > 3.0  # it reported progress for 3 s
