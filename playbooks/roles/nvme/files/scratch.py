#!/usr/bin/python3
"""One scratch file system of all disks of the instance store, at every boot.

    scratch.py make DISKS MOUNT_POINT SERVICE ITS_MOUNT_POINT SECONDS [FOLDER...]
    scratch.py verify DISKS MOUNT_POINT

A stop of the instance empties its store, a reboot does not: what is there is looked at, and only what lacks is made.
Several disks are a RAID 0: what a lost disk takes along would have been lost with the instance too. One disk is taken
as it is. A disk that bears anything else than our name is left alone, and the node refuses. The file system is XFS:
mkfs takes no time over terabytes and leaves no initialising to the background, as ext4's does, and many writers at once
have allocation groups of their own. Says `changed` and what for each thing done.
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
NAME = "trainyard"  # of the array and of the file system: what bears it is ours
MEMBER = "linux_raid_member"
FILE_SYSTEM = "xfs"
COLUMNS = "NAME,TYPE,MODEL,SIZE,MOUNTPOINTS"
STEPS = 8  # more than any way from blank disks to a mounted file system takes
LOOK_EVERY = 1.0
LEAST_SHARE = 0.9  # of the disks' bytes, in the mounted file system: metadata takes a few hundredths


class Problem(Exception):
    """What stands in the way, in words for who runs the cluster."""


@dataclass(frozen=True)
class Signature:
    """What a device says it is, by its own bytes."""

    kind: str
    label: str = ""

    @property
    def ours(self) -> bool:
        return self.kind in (MEMBER, FILE_SYSTEM) and self.label.rsplit(":", 1)[-1] == NAME

    def __str__(self) -> str:
        return f"{self.kind} {self.label}".strip()


@dataclass(frozen=True)
class Device:
    """A block device, and what is built on it."""

    path: str
    kind: str = "disk"
    model: str = ""
    size: int = 0
    mounts: tuple[str, ...] = ()
    children: tuple["Device", ...] = ()
    signatures: tuple[Signature, ...] = field(default=())

    @property
    def all_mounts(self) -> tuple[str, ...]:
        return self.mounts + tuple(mount for child in self.children for mount in child.all_mounts)

    def holds(self) -> str:
        """What is on it, in words; empty for a blank one."""
        parts = [str(signature) for signature in self.signatures]
        parts += [f"{child.kind} {child.path}" for child in self.children]
        parts += [f"mounted at {mount}" for mount in self.all_mounts]
        return ", ".join(parts)


@dataclass(frozen=True)
class Step:
    """What to do next. `action`: `create`, `assemble`, `clear`, `format`, `mount` or `done`."""

    action: str
    device: str = ""


def parsed(told: str, signatures: dict[str, tuple[Signature, ...]] | None = None) -> list[Device]:
    """Devices of `lsblk --json`. `signatures`: by path."""

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

    return [device(item) for item in json.loads(told)["blockdevices"]]


def store(devices: Sequence[Device]) -> list[Device]:
    """The disks of the instance store among them."""
    return [device for device in devices if device.kind == "disk" and device.model == MODEL]


def counted(disks: Sequence[Device], wanted: int) -> None:
    if len(disks) != wanted:
        names = f" ({', '.join(disk.path for disk in disks)})" if disks else ""
        raise Problem(
            f"the instance store has {len(disks)} disks{names}, the type has {wanted}: a disk is missing, and the "
            "instance is to be replaced, or the hardware catalog is wrong of this type (hardware.disks in the manifest)"
        )


def next_step(disks: Sequence[Device], mount_point: str) -> Step:
    """What brings these disks nearer to a file system at the mount point. Raises Problem over what is not ours."""
    blank = [disk for disk in disks if not disk.holds()]
    if len(blank) == len(disks):
        return Step("create") if len(disks) > 1 else Step("format", disks[0].path)
    ours = [disk for disk in disks if disk.signatures and all(signature.ours for signature in disk.signatures)]
    if strange := [disk for disk in disks if disk not in blank and disk not in ours]:
        told = "; ".join(f"{disk.path} holds {disk.holds()}" for disk in strange)
        raise Problem(
            f"{told}. It is not this role's, and is left as it is: stop what has made it and wipe it (wipefs -a), "
            "or leave the role out (node.leave_out: [nvme])"
        )
    if len(disks) == 1:
        return _upon(disks[0], mount_point)
    arrays = {child.path: child for disk in disks for child in disk.children}
    if len(ours) < len(disks) or len(arrays) > 1:
        # A creation that was killed, or an array of disks that another instance had: nothing can be read of it.
        if mounts := [mount for disk in disks for mount in disk.all_mounts]:
            raise Problem(f"an array of some of the disks is mounted at {', '.join(mounts)}: unmount it")
        return Step("clear")
    if not arrays:
        return Step("assemble")
    return _upon(next(iter(arrays.values())), mount_point)


def _upon(device: Device, mount_point: str) -> Step:
    """With an array of ours, or the only disk."""
    if mount_point in device.mounts:
        return Step("done")
    formatted = any(signature.kind == FILE_SYSTEM and signature.ours for signature in device.signatures)
    return Step("mount" if formatted else "format", device.path)


def run(*command: str) -> str:
    """Its stdout. Raises Problem with the words of a failure."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Problem(f"{command[0]} can't be run: {error}") from error
    if done.returncode:
        raise Problem(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def look() -> list[Device]:
    """Disks of the instance store as they are now. Signatures are read off the disks: what udev keeps may be old."""
    subprocess.run(["udevadm", "settle", "--timeout=30"], check=False, capture_output=True)
    told = run("lsblk", "--json", "--bytes", "--paths", "--output", COLUMNS)
    paths = {device.path for disk in store(parsed(told)) for device in _and_below(disk)}
    return store(parsed(told, {path: _signatures(path) for path in paths}))


def _and_below(device: Device) -> Iterator[Device]:
    yield device
    for child in device.children:
        yield from _and_below(child)


def _signatures(path: str) -> tuple[Signature, ...]:
    told = run("wipefs", "--no-act", "--json", "--output", "TYPE,LABEL", path).strip()
    found = json.loads(told).get("signatures", []) if told else []
    return tuple(Signature(item["type"], item.get("label") or "") for item in found)


def perform(step: Step, disks: Sequence[Device], mount_point: str) -> None:
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
        # No discard: the store comes discarded, and eight disks would take minutes.
        run(f"mkfs.{FILE_SYSTEM}", "-q", "-K", "-L", NAME, step.device)
    elif step.action == "mount":
        Path(mount_point).mkdir(parents=True, exist_ok=True)
        mount(step.device, mount_point)


def mount(device: str, mount_point: str) -> None:
    """A file system of ours that can't be mounted is made anew: a formatting was killed, and caches can be lost."""
    command = ("mount", "-t", FILE_SYSTEM, "-o", "noatime", device, mount_point)
    try:
        run(*command)
    except Problem as problem:
        say(f"made {device} anew, since {problem}")
        run(f"mkfs.{FILE_SYSTEM}", "-q", "-K", "-f", "-L", NAME, device)
        run(*command)


def say(what: str) -> None:
    print(f"changed: {what}")


def service_state(told: str) -> str:
    """`absent`, `pending` (it runs or is about to) or `over`, of what `systemctl show` says of a unit."""
    known = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    if known.get("LoadState") != "loaded":
        return "absent"
    if known.get("ActiveState") in ("activating", "reloading") or known.get("Job", "0") not in ("", "0"):
        return "pending"
    return "over"


def image_has_mounted(service: str, image_mount: str, seconds: float) -> bool:
    """Whether the image has made its own file system; waits for the image's service where it has one."""
    deadline = time.monotonic() + seconds
    while True:
        state = service_state(run("systemctl", "show", "--property=LoadState,ActiveState,Job", service))
        if state != "pending":
            return os.path.ismount(image_mount)
        if time.monotonic() > deadline:
            raise Problem(f"{service} has not ended within {seconds:.0f} s: look at `journalctl -u {service}`")
        time.sleep(LOOK_EVERY)


def make(wanted: int, mount_point: str, service: str, image_mount: str, seconds: float) -> None:
    counted(store(parsed(run("lsblk", "--json", "--bytes", "--paths", "--output", COLUMNS))), wanted)
    if image_has_mounted(service, image_mount, seconds):
        Path(mount_point).mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(mount_point):
            run("mount", "--bind", image_mount, mount_point)
            say(f"{mount_point} is the image's {image_mount}")
        elif Path(mount_point).stat().st_dev != Path(image_mount).stat().st_dev:
            raise Problem(f"{mount_point} is another mount than the image's {image_mount}: unmount it")
        return
    for _ in range(STEPS):
        disks = look()
        counted(disks, wanted)
        step = next_step(disks, mount_point)
        if step.action == "done":
            return
        if step.action == "mount" and os.path.ismount(mount_point):
            raise Problem(f"{mount_point} is a mount of something else: unmount it")
        perform(step, disks, mount_point)
        say(" ".join(filter(None, [step.action, step.device or ", ".join(disk.path for disk in disks)])))
    raise Problem(f"the disks are not as they should be after {STEPS} steps: look at `lsblk` and /proc/mdstat")


def verify(wanted: int, mount_point: str) -> None:
    disks = store(parsed(run("lsblk", "--json", "--bytes", "--paths", "--output", COLUMNS)))
    counted(disks, wanted)
    if not os.path.ismount(mount_point):
        raise Problem(f"nothing is mounted at {mount_point}")
    status = os.statvfs(mount_point)
    have, expected = status.f_blocks * status.f_frsize, sum(disk.size for disk in disks)
    if have < LEAST_SHARE * expected:
        raise Problem(f"the file system at {mount_point} has {have:,} bytes, and the disks together {expected:,}")
    probe, text = Path(mount_point) / f".trainyard-{os.getpid()}", os.urandom(4096)
    try:
        probe.write_bytes(text)
        if probe.read_bytes() != text:
            raise Problem(f"{mount_point} gives back something else than was written")
    except OSError as error:
        raise Problem(f"{mount_point} takes no file: {error}") from error
    finally:
        probe.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    verb, wanted, mount_point, *rest = arguments
    try:
        if verb == "make":
            service, image_mount, seconds, *folders = rest
            make(int(wanted), mount_point, service, image_mount, float(seconds))
            for folder in folders:
                (Path(mount_point) / folder).mkdir(parents=True, exist_ok=True)
        else:
            verify(int(wanted), mount_point)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
