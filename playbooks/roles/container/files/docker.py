"""Configure Docker for jobs, and pull the job's image.

    docker.py configure gpus|- DATA_ROOT|'' ECR_REGISTRY|'' [MOUNTED_DIRECTORY...]
    docker.py pull IMAGE

Prints `changed` if anything was changed, and `restart` if the daemon must be restarted to use its settings.
Other settings in an image's daemon.json stay. A job's container uses the network of the node: Docker creates no bridge
and no packet filter, which collective libraries would take for routes to other nodes.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DAEMON_SETTINGS = Path("/etc/docker/daemon.json")
DROP_IN = Path("/etc/systemd/system/docker.service.d/trainyard.conf")
CLIENT_SETTINGS = Path("/root/.docker/config.json")
PACKAGES = (
    "docker.io",
    "docker-ce",
    "containerd",
    "containerd.io",
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)
PULL_RETRY_DELAYS_SECONDS = (2, 5, 15, 30)


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Return the completed process, also if it has failed."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_checked(*command: str) -> str:
    """Return the standard output of a command. Raises SystemExit with its error output if it fails."""
    process = run(*command)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {(process.stderr or process.stdout).strip()}")
    return process.stdout


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing. Raises SystemExit for other content."""
    text = file.read_text() if file.exists() else ""
    try:
        content = json.loads(text or "{}")
    except ValueError as error:
        raise SystemExit(f"{file} is not valid JSON ({error}): correct or remove it") from None
    if not isinstance(content, dict):
        raise SystemExit(f"{file} is not a JSON object: correct or remove it")
    return content


def daemon_settings(current: dict[str, Any], gpus: bool, data_root: str) -> dict[str, Any]:
    """Return the current settings of the daemon, overridden by those of the role."""
    settings: dict[str, Any] = {"bridge": "none", "iptables": False, "ip6tables": False, "live-restore": True}
    if gpus:
        nvidia = {"args": [], "path": "nvidia-container-runtime"}
        settings["runtimes"] = {**current.get("runtimes", {}), "nvidia": nvidia}
    if data_root:
        settings["data-root"] = data_root
        # A new Docker 29 or newer stores images in containerd, which ignores data-root.
        settings["features"] = {**current.get("features", {}), "containerd-snapshotter": False}
    return {**current, **settings}


def write_json(file: Path, content: dict[str, Any], is_daemon: bool = False) -> bool:
    """Write the file if its content differs, and return whether it did. Daemon settings are validated before that."""
    if file.exists() and read_json(file) == content:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    # Docker older than 23, such as Debian 12's, cannot validate a file.
    if is_daemon and "--validate" in run("dockerd", "--help").stdout:
        process = run("dockerd", "--validate", f"--config-file={temporary}")
        if process.returncode:
            temporary.unlink()
            error = (process.stderr or process.stdout).strip()
            raise SystemExit(f"Docker refuses the new settings for {file}: {error}")
    temporary.replace(file)
    return True


def find_mount_point(folder: Path) -> Path:
    """Return the mount point of the file system of this folder."""
    return next(path for path in (folder, *folder.parents) if path.is_mount())


def write_mount_condition(data_root: str) -> bool:
    """Make systemd start Docker only if the file system of its data is mounted; return whether the unit changed.

    At boot Docker would start before the playbook mounts the file system, and fill the directory below. The mount is
    not a systemd unit, so RequiresMountsFor= would have no effect.
    """
    mount_point = find_mount_point(Path(data_root)) if data_root else Path("/")
    expected = f"[Unit]\nConditionPathIsMountPoint={mount_point}\n" if mount_point != Path("/") else ""
    if (DROP_IN.read_text() if DROP_IN.exists() else "") == expected:
        return False
    if expected:
        DROP_IN.parent.mkdir(parents=True, exist_ok=True)
        DROP_IN.write_text(expected)
    else:
        DROP_IN.unlink()
    return True


def has_covered_files(data_root: str) -> bool:
    """Return whether the running daemon has files open in a data root that a later mount has covered."""
    process = run_checked("systemctl", "show", "--property=MainPID", "--value", "docker.service").strip()
    device = Path(data_root).stat().st_dev
    for file in Path(f"/proc/{process}/fd").glob("*"):
        try:
            if str(file.readlink()).startswith(f"{data_root}/") and file.stat().st_dev != device:
                return True
        except OSError:  # closed in the meantime
            continue
    return False


def uses_settings(gpus: bool, data_root: str) -> bool:
    """Return whether the running daemon uses the settings file; an earlier run may have ended before the restart."""
    info = run("docker", "info", "--format", "{{json .}}")
    start = run("systemctl", "show", "--property=ActiveEnterTimestamp", "--value", "--timestamp=unix", "docker.service")
    started_at = int(start.stdout.strip().lstrip("@") or 0)
    if info.returncode or DAEMON_SETTINGS.stat().st_mtime > started_at + 1:
        return False
    values = json.loads(info.stdout)
    has_runtime = not gpus or "nvidia" in values.get("Runtimes", {})
    has_data_root = not data_root or (values.get("DockerRootDir") == data_root and not has_covered_files(data_root))
    return has_runtime and has_data_root


def hold_packages() -> bool:
    """Hold the installed packages, and return whether one was not held."""
    lines = run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *PACKAGES).stdout.splitlines()
    names = [line.split()[1] for line in lines if line.startswith("installed ")]
    output = run_checked("apt-mark", "hold", *names) if names else ""
    return any("already" not in line for line in output.splitlines())


def configure(gpus: str, data_root: str, registry: str, *directories: str) -> None:
    """Hold packages, create directories, and write the settings of systemd, daemon and client."""
    changed = hold_packages()
    for directory in filter(None, (data_root, *directories)):  # Docker refuses to mount a missing directory
        if not os.path.lexists(directory):
            Path(directory).mkdir(parents=True)
            changed = True
    settings = daemon_settings(read_json(DAEMON_SETTINGS), gpus == "gpus", data_root)
    changed |= write_mount_condition(settings.get("data-root", ""))
    if "yes" in run("systemctl", "show", "--property=NeedDaemonReload", "docker.service").stdout:
        print("reload")  # not in every run: a reload can take the GPUs from running containers
    settings_changed = write_json(DAEMON_SETTINGS, settings, is_daemon=True)
    if registry:
        client = read_json(CLIENT_SETTINGS)
        client["credHelpers"] = {**client.get("credHelpers", {}), registry: "ecr-login"}
        changed |= write_json(CLIENT_SETTINGS, client)
    if settings_changed or not uses_settings(gpus == "gpus", data_root):
        print("restart")
    if changed or settings_changed:
        print("changed")


def pull(image: str) -> None:
    """Pull the image if it is missing. Raises SystemExit after the last attempt."""
    if run("docker", "image", "inspect", image).returncode == 0:
        return
    for delay in (*PULL_RETRY_DELAYS_SECONDS, None):
        process = run("docker", "pull", "--quiet", image)
        if process.returncode == 0:
            print("changed")
            return
        if delay is None:
            attempts = len(PULL_RETRY_DELAYS_SECONDS) + 1
            raise SystemExit(f"cannot pull {image}: {process.stderr.strip()} ({attempts} attempts)")
        time.sleep(delay)


def main(command: str, *arguments: str) -> None:
    """Run one of the two commands."""
    if command == "configure":
        configure(*arguments)
    else:
        pull(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
