"""Has Docker configured, held, running with that, and the job's image there. Says `changed` where it had not been so.

docker.py gpus|- DATA_FOLDER|'' IMAGE|'' ECR_REGISTRY|''

What an image's own daemon.json says of other things stays. A container of a job has the node's network: no bridge and
no packet filter of Docker's are made, which collective libraries would take for ways to other nodes.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DAEMON = Path("/etc/docker/daemon.json")
CLIENT = Path("/root/.docker/config.json")
PACKAGES = (
    "docker.io",
    "docker-ce",
    "containerd",
    "containerd.io",
    "libnvidia-container1",
    "libnvidia-container-tools",
)
TOOLKIT = ("nvidia-container-toolkit", "nvidia-container-toolkit-base")
PULL_DELAYS = (2, 5, 15, 30)  # seconds between tries


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def must(*command: str) -> str:
    done = run(*command)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def read(file: Path) -> dict[str, Any]:
    text = file.read_text() if file.exists() else ""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise SystemExit(f"{file} is not JSON ({error}): mend or remove it") from None
    if not isinstance(found, dict):
        raise SystemExit(f"{file} is not a JSON object: mend or remove it")
    return found


def daemon_settings(before: dict[str, Any], gpus: bool, data: str) -> dict[str, Any]:
    """The daemon's settings: what is ours over what is there."""
    own: dict[str, Any] = {"bridge": "none", "iptables": False, "ip6tables": False, "live-restore": True}
    if gpus:
        nvidia = {"args": [], "path": "nvidia-container-runtime"}
        own["runtimes"] = {**before.get("runtimes", {}), "nvidia": nvidia}
    if data:
        own["data-root"] = data
    return {**before, **own}


def written(file: Path, wanted: dict[str, Any], check: bool = False) -> bool:
    """Whether it had to be written. A daemon's settings land only once the daemon has taken them for good."""
    if file.exists() and read(file) == wanted:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(wanted, indent=2, sort_keys=True) + "\n")
    # Docker older than 23, as Debian 12's, can't check a file.
    if check and "--validate" in run("dockerd", "--help").stdout:
        done = run("dockerd", "--validate", f"--config-file={new}")
        if done.returncode:
            new.unlink()
            raise SystemExit(f"Docker refuses the settings meant for {file}: {(done.stderr or done.stdout).strip()}")
    new.replace(file)
    return True


def in_force(gpus: bool, data: str) -> bool:
    """Whether the running daemon has what the file says, also where an earlier run ended before it was started anew."""
    done = run("docker", "info", "--format", "{{json .}}")
    since = run("systemctl", "show", "--property=ActiveEnterTimestamp", "--value", "--timestamp=unix", "docker.service")
    if done.returncode or DAEMON.stat().st_mtime > int(since.stdout.strip().lstrip("@") or 0) + 1:
        return False
    told = json.loads(done.stdout)
    runs = not gpus or "nvidia" in told.get("Runtimes", {})
    return runs and (not data or told.get("DockerRootDir") == data)


def held() -> bool:
    """Hold what is installed; whether something had not been held."""
    lines = run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *PACKAGES, *TOOLKIT).stdout.splitlines()
    names = [line.split()[1] for line in lines if line.startswith("installed ")]
    told = must("apt-mark", "hold", *names) if names else ""
    return any("already" not in line for line in told.splitlines())


def pulled(image: str) -> bool:
    """Whether it had to be pulled."""
    if run("docker", "image", "inspect", image).returncode == 0:
        return False
    for delay in (*PULL_DELAYS, None):
        done = run("docker", "pull", "--quiet", image)
        if done.returncode == 0:
            return True
        if delay is None:
            raise SystemExit(f"can't pull {image}: {done.stderr.strip()} ({len(PULL_DELAYS) + 1} tries)")
        time.sleep(delay)
    raise AssertionError


def main(gpus: str, data: str, image: str, registry: str) -> None:
    changed = held()
    if data:
        Path(data).mkdir(parents=True, exist_ok=True)
    fresh = written(DAEMON, daemon_settings(read(DAEMON), gpus == "gpus", data), check=True)
    if registry:
        client = read(CLIENT)
        client["credHelpers"] = {**client.get("credHelpers", {}), registry: "ecr-login"}
        changed |= written(CLIENT, client)
    if run("systemctl", "is-enabled", "-q", "docker.service").returncode:
        must("systemctl", "enable", "-q", "docker.service")
        changed = True
    if fresh or not in_force(gpus == "gpus", data):
        must("systemctl", "restart", "docker.service")
        changed = True
    if image:
        changed |= pulled(image)
    if changed:
        print("changed")


if __name__ == "__main__":
    main(*sys.argv[1:])
