"""Has Docker configured, held, running with that, and the job's image there. Says `changed` where it had not been so.

docker.py gpus|- DATA_FOLDER|'' IMAGE|'' ECR_REGISTRY|'' [FOLDER_THAT_CONTAINERS_SEE...]

What an image's own daemon.json says of other things stays. A container of a job has the node's network: no bridge and
no packet filter of Docker's are made, which collective libraries would take for ways to other nodes.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DAEMON = Path("/etc/docker/daemon.json")
DROP_IN = Path("/etc/systemd/system/docker.service.d/trainyard.conf")
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
        # Images would lie with containerd, which knows nothing of data-root: Docker 29 and newer, freshly installed.
        own["features"] = {**before.get("features", {}), "containerd-snapshotter": False}
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


def mount_of(folder: Path) -> Path:
    """The mount point that it is on."""
    return next(each for each in (folder, *folder.parents) if each.is_mount())


def bound_to(data: str) -> bool:
    """Have Docker start only where the file system of its data is mounted; whether that had not been so.

    A boot comes before the play that mounts it, and Docker would fill the folder below. No unit of systemd's mounts it,
    so RequiresMountsFor= would wait for nothing.
    """
    mount = mount_of(Path(data)) if data else Path("/")
    wanted = f"[Unit]\nConditionPathIsMountPoint={mount}\n" if mount != Path("/") else ""
    if (DROP_IN.read_text() if DROP_IN.exists() else "") == wanted:
        return False
    if wanted:
        DROP_IN.parent.mkdir(parents=True, exist_ok=True)
        DROP_IN.write_text(wanted)
    else:
        DROP_IN.unlink()
    must("systemctl", "daemon-reload")
    return True


def hidden(data: str) -> bool:
    """Whether the running daemon has files open in a folder of that name which a mount has covered since."""
    process = must("systemctl", "show", "--property=MainPID", "--value", "docker.service").strip()
    here = Path(data).stat().st_dev
    for file in Path(f"/proc/{process}/fd").glob("*"):
        try:
            if str(file.readlink()).startswith(f"{data}/") and file.stat().st_dev != here:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def in_force(gpus: bool, data: str) -> bool:
    """Whether the running daemon has what the file says, also where an earlier run ended before it was started anew."""
    done = run("docker", "info", "--format", "{{json .}}")
    since = run("systemctl", "show", "--property=ActiveEnterTimestamp", "--value", "--timestamp=unix", "docker.service")
    if done.returncode or DAEMON.stat().st_mtime > int(since.stdout.strip().lstrip("@") or 0) + 1:
        return False
    told = json.loads(done.stdout)
    runs = not gpus or "nvidia" in told.get("Runtimes", {})
    return runs and (not data or (told.get("DockerRootDir") == data and not hidden(data)))


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


def main(gpus: str, data: str, image: str, registry: str, *folders: str) -> None:
    changed = held()
    for folder in filter(None, (data, *folders)):  # Docker refuses to show a container what is not there
        if not os.path.lexists(folder):
            Path(folder).mkdir(parents=True)
            changed = True
    settings = daemon_settings(read(DAEMON), gpus == "gpus", data)
    changed |= bound_to(settings.get("data-root", ""))
    fresh = written(DAEMON, settings, check=True)
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
