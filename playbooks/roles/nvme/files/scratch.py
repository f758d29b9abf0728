#!/usr/bin/python3
"""Create and mount one scratch file system on all disks of the instance store, at every boot.

    scratch.py create DISKS MOUNT_POINT IMAGE_SERVICE IMAGE_MOUNT_POINT TIMEOUT_SECONDS [DIRECTORY...]
    scratch.py verify DISKS MOUNT_POINT

A stop of the instance erases its store, a reboot does not: the script inspects the disks and runs only the missing
steps. Several disks become a RAID 0: the instance is replaced after the loss of a disk in any case. A single disk gets
no RAID. The script refuses to change a disk with any signature other than its own. The file system is XFS: mkfs takes
no time for terabytes and leaves no background initialization, unlike ext4, and concurrent writers have separate
allocation groups. Prints `changed: ...` for each completed step.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "Amazon EC2 NVMe Instance Storage"
NAME = "trainyard"  # name of the array and label of the file system: only devices with this name are changed
RAID_MEMBER = "linux_raid_member"
FILE_SYSTEM = "xfs"
LSBLK_COLUMNS = "NAME,TYPE,MODEL,SIZE,MOUNTPOINTS"
MAX_STEPS = 8  # more than any sequence from blank disks to a mounted file system needs
POLL_SECONDS = 1.0
MINIMUM_SHARE = 0.9  # of the disks' bytes, in the mounted file system: metadata uses a few hundredths


class ScratchError(Exception):
    """The scratch file system cannot be created or verified; the message is for the operator."""


@dataclass(frozen=True)
class Signature:
    """A signature on a block device, read from its blocks."""

    kind: str
    label: str = ""

    @property
    def is_project_signature(self) -> bool:
        """Whether this script has written it."""
        return self.kind in (RAID_MEMBER, FILE_SYSTEM) and self.label.rsplit(":", 1)[-1] == NAME

    def __str__(self) -> str:
        return f"{self.kind} {self.label}".strip()


@dataclass(frozen=True)
class Device:
    """A block device and the devices on top of it."""

    path: str
    kind: str = "disk"
    model: str = ""
    size: int = 0
    mounts: tuple[str, ...] = ()
    children: tuple["Device", ...] = ()
    signatures: tuple[Signature, ...] = field(default=())

    @property
    def all_mounts(self) -> tuple[str, ...]:
        """Mount points of the device and of the devices on top of it."""
        return self.mounts + tuple(mount for child in self.children for mount in child.all_mounts)

    def describe_content(self) -> str:
        """Return signatures, child devices and mounts as text; empty for a blank device."""
        parts = [str(signature) for signature in self.signatures]
        parts += [f"{child.kind} {child.path}" for child in self.children]
        parts += [f"mounted at {mount}" for mount in self.all_mounts]
        return ", ".join(parts)


@dataclass(frozen=True)
class Step:
    """The next step. `action`: `create`, `assemble`, `clear`, `format`, `mount` or `done`."""

    action: str
    device: str = ""


def parse_devices(output: str, signatures: dict[str, tuple[Signature, ...]] | None = None) -> list[Device]:
    """Return the devices in the output of `lsblk --json`, with the signatures by device path."""

    def device(item: dict[str, object]) -> Device:
        mounts, children = item.get("mountpoints") or [], item.get("children") or []
        assert isinstance(mounts, list)
        assert isinstance(children, list)
        path = str(item["name"])
        return Device(
            path=path,
            kind=str(item["type"]),
            model=str(item.get("model") or "").strip(),
            size=int(str(item.get("size") or 0)),
            mounts=tuple(mount for mount in mounts if mount),
            children=tuple(device(child) for child in children),
            signatures=(signatures or {}).get(path, ()),
        )

    return [device(item) for item in json.loads(output)["blockdevices"]]


def instance_store_disks(devices: Sequence[Device]) -> list[Device]:
    """Return the instance store disks among the devices."""
    return [device for device in devices if device.kind == "disk" and device.model == MODEL]


def check_disk_count(disks: Sequence[Device], expected: int) -> None:
    """Raise ScratchError unless there are exactly `expected` disks."""
    if len(disks) != expected:
        names = f" ({', '.join(disk.path for disk in disks)})" if disks else ""
        raise ScratchError(
            f"the instance store has {len(disks)} disks{names}, the instance type has {expected}: replace the "
            "instance, which has lost a disk, or correct hardware.disks of the type in the hardware catalog"
        )


def next_step(disks: Sequence[Device], mount_point: str) -> Step:
    """Return the next step towards a mounted file system. Raises ScratchError if a disk has foreign content."""
    blank = [disk for disk in disks if not disk.describe_content()]
    if len(blank) == len(disks):
        return Step("create") if len(disks) > 1 else Step("format", disks[0].path)
    known = [
        disk
        for disk in disks
        if disk.signatures and all(signature.is_project_signature for signature in disk.signatures)
    ]
    if foreign := [disk for disk in disks if disk not in blank and disk not in known]:
        contents = "; ".join(f"{disk.path} has {disk.describe_content()}" for disk in foreign)
        raise ScratchError(
            f"{contents}. This role did not create it and does not change it: stop the program that created it and "
            "wipe the disk (wipefs -a), or skip the role (node.skip_roles: [nvme])"
        )
    if len(disks) == 1:
        return _format_or_mount(disks[0], mount_point)
    arrays = {child.path: child for disk in disks for child in disk.children}
    if len(known) < len(disks) or len(arrays) > 1:
        # An interrupted creation, or an array of disks from another instance: its data cannot be read.
        if mounts := [mount for disk in disks for mount in disk.all_mounts]:
            raise ScratchError(f"an array of some of the disks is mounted at {', '.join(mounts)}: unmount it")
        return Step("clear")
    if not arrays:
        return Step("assemble")
    return _format_or_mount(next(iter(arrays.values())), mount_point)


def _format_or_mount(device: Device, mount_point: str) -> Step:
    """Return the next step for the assembled array or the single disk."""
    if mount_point in device.mounts:
        return Step("done")
    is_formatted = any(
        signature.kind == FILE_SYSTEM and signature.is_project_signature for signature in device.signatures
    )
    return Step("mount" if is_formatted else "format", device.path)


def run(*command: str) -> str:
    """Return the standard output of a command. Raises ScratchError with its error output if it fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ScratchError(f"{command[0]} cannot be run: {error}") from error
    if process.returncode:
        raise ScratchError(f"`{' '.join(command)}` failed: {(process.stderr or process.stdout).strip()}")
    return process.stdout


def list_disks() -> list[Device]:
    """Return the instance store disks, without signatures."""
    return instance_store_disks(parse_devices(run("lsblk", "--json", "--bytes", "--paths", "--output", LSBLK_COLUMNS)))


def inspect_disks() -> list[Device]:
    """Return the instance store disks with signatures, which are read from the disks: udev's data may be outdated."""
    subprocess.run(["udevadm", "settle", "--timeout=30"], check=False, capture_output=True)
    output = run("lsblk", "--json", "--bytes", "--paths", "--output", LSBLK_COLUMNS)
    paths = {device.path for disk in instance_store_disks(parse_devices(output)) for device in _with_children(disk)}
    return instance_store_disks(parse_devices(output, {path: _signatures(path) for path in paths}))


def _with_children(device: Device) -> Iterator[Device]:
    yield device
    for child in device.children:
        yield from _with_children(child)


def _signatures(path: str) -> tuple[Signature, ...]:
    output = run("wipefs", "--no-act", "--json", "--output", "TYPE,LABEL", path).strip()
    items = json.loads(output).get("signatures", []) if output else []
    return tuple(Signature(item["type"], item.get("label") or "") for item in items)


def perform(step: Step, disks: Sequence[Device], mount_point: str) -> None:
    """Run the commands of one step. Raises ScratchError if one fails."""
    paths = [disk.path for disk in disks]
    if step.action == "create":
        run(
            *("mdadm", "--create", f"/dev/md/{NAME}", "--run", "--level=0", f"--raid-devices={len(paths)}"),
            *(f"--name={NAME}", "--homehost=any", *paths),
        )
    elif step.action == "assemble":
        run("mdadm", "--assemble", f"/dev/md/{NAME}", "--run", *paths)
    elif step.action == "clear":
        for array in sorted({child.path for disk in disks for child in disk.children}):
            run("mdadm", "--stop", array)
        run("wipefs", "--quiet", "--all", *[disk.path for disk in disks if disk.signatures])
    elif step.action == "format":
        # -K: no discard. The instance store is discarded at its start, and eight disks would take minutes.
        run(f"mkfs.{FILE_SYSTEM}", "-q", "-K", "-L", NAME, step.device)
    elif step.action == "mount":
        Path(mount_point).mkdir(parents=True, exist_ok=True)
        mount(step.device, mount_point)


def mount(device: str, mount_point: str) -> None:
    """Mount the file system; format it again if that fails: mkfs was interrupted, and caches may be lost."""
    command = ("mount", "-t", FILE_SYSTEM, "-o", "noatime", device, mount_point)
    try:
        run(*command)
    except ScratchError as error:
        report_change(f"formatted {device} again, because {error}")
        run(f"mkfs.{FILE_SYSTEM}", "-q", "-K", "-f", "-L", NAME, device)
        run(*command)


def report_change(message: str) -> None:
    """Print the line from which the Ansible task derives its changed state."""
    print(f"changed: {message}")


def service_state(properties: str) -> str:
    """Return `absent`, `pending` (running or queued) or `finished` from the output of `systemctl show` for a unit."""
    values = dict(line.split("=", 1) for line in properties.splitlines() if "=" in line)
    if values.get("LoadState") != "loaded":
        return "absent"
    if values.get("ActiveState") in ("activating", "reloading") or values.get("Job", "0") not in ("", "0"):
        return "pending"
    return "finished"


def is_mounted_by_image(service: str, image_mount: str, timeout_seconds: float) -> bool:
    """Wait for the image's service, if there is one, and return whether it has mounted its file system."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        state = service_state(run("systemctl", "show", "--property=LoadState,ActiveState,Job", service))
        if state != "pending":
            return os.path.ismount(image_mount)
        if time.monotonic() > deadline:
            raise ScratchError(
                f"{service} has not finished within {timeout_seconds:.0f} s: check `journalctl -u {service}`"
            )
        time.sleep(POLL_SECONDS)


def create(disk_count: int, mount_point: str, service: str, image_mount: str, timeout_seconds: float) -> None:
    """Create and mount the file system, or bind-mount the image's. Raises ScratchError."""
    check_disk_count(list_disks(), disk_count)
    if is_mounted_by_image(service, image_mount, timeout_seconds):
        Path(mount_point).mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(mount_point):
            run("mount", "--bind", image_mount, mount_point)
            report_change(f"bind-mounted the image's {image_mount} at {mount_point}")
        elif Path(mount_point).stat().st_dev != Path(image_mount).stat().st_dev:
            raise ScratchError(f"{mount_point} is a different mount than the image's {image_mount}: unmount it")
        return
    for _ in range(MAX_STEPS):
        disks = inspect_disks()
        check_disk_count(disks, disk_count)
        step = next_step(disks, mount_point)
        if step.action == "done":
            return
        if step.action == "mount" and os.path.ismount(mount_point):
            raise ScratchError(f"{mount_point} is the mount point of another file system: unmount it")
        perform(step, disks, mount_point)
        report_change(f"{step.action} {step.device or ', '.join(disk.path for disk in disks)}")
    raise ScratchError(f"no mounted file system after {MAX_STEPS} steps: check `lsblk` and /proc/mdstat")


def verify(disk_count: int, mount_point: str) -> None:
    """Raise ScratchError unless a writable file system on all disks is mounted."""
    disks = list_disks()
    check_disk_count(disks, disk_count)
    if not os.path.ismount(mount_point):
        raise ScratchError(f"no file system is mounted at {mount_point}")
    status = os.statvfs(mount_point)
    file_system_bytes, disk_bytes = status.f_blocks * status.f_frsize, sum(disk.size for disk in disks)
    if file_system_bytes < MINIMUM_SHARE * disk_bytes:
        raise ScratchError(
            f"the file system at {mount_point} has {file_system_bytes:,} bytes, and all disks have {disk_bytes:,}"
        )
    probe, content = Path(mount_point) / f".trainyard-{os.getpid()}", os.urandom(4096)
    try:
        probe.write_bytes(content)
        if probe.read_bytes() != content:
            raise ScratchError(f"{mount_point}: the content read differs from the content written")
    except OSError as error:
        raise ScratchError(f"{mount_point} is not writable: {error}") from error
    finally:
        probe.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Run `create` or `verify`, print an error to stderr, and return the exit status."""
    command, disk_count, mount_point, *options = arguments
    try:
        if command == "create":
            service, image_mount, timeout_seconds, *directories = options
            create(int(disk_count), mount_point, service, image_mount, float(timeout_seconds))
            for directory in directories:
                (Path(mount_point) / directory).mkdir(parents=True, exist_ok=True)
        else:
            verify(int(disk_count), mount_point)
    except ScratchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
