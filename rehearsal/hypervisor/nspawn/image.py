"""The base root of booted nodes: Debian 12 with what a cloud image of it brings, made once by debootstrap.

It is kept outside the tree, under $XDG_CACHE_HOME/trainyard (~/.cache/trainyard), named by its recipe: a changed recipe
makes a new one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SUITE = "bookworm"
PYTHON = (3, 11)  # bookworm's: a virtual environment that is shared with nodes must be of it
MIRROR = "http://deb.debian.org/debian"
MIRROR_VARIABLE = "TRAINYARD_DEBIAN_MIRROR"
_MINIMAL = ("ca-certificates", "dbus", "iproute2", "procps", "systemd", "systemd-sysv")
# What a cloud image has and the plays build on; debootstrap itself can't resolve cloud-init. Debian's need not have gpg
# nor mdadm: roles install them where they are not there, and nodes of a rehearsal have no mirror.
_LATER = ("chrony", "cloud-init", "gpg", "mdadm", "python3-apt", "python3-venv", "sudo", "udev", "xfsprogs")
_MODULE = Path(__file__).parent / "datasource"
_MODULE_PLACE = "usr/lib/python3/dist-packages/trainyard_rehearsal"
_CLOUD_CONFIG = """\
datasource_list: [ Ec2 ]
datasource_pkg_list: [ trainyard_rehearsal ]
datasource: {Ec2: {metadata_urls: ["http://169.254.169.254:80"], max_wait: 120, timeout: 5}}
network: {config: disabled}
locale: false
"""
# Neither a machine's own time nor its kernel is a container's to set.
_MASKED = ("systemd-timesyncd", "systemd-resolved", "e2scrub_reap", "apt-daily.timer", "apt-daily-upgrade.timer")


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"


def recipe() -> str:
    """Twelve hexadecimal digits of all that the root is made from."""
    module = b"".join(file.read_bytes() for file in sorted(_MODULE.glob("*.py")))
    words = "\n".join([SUITE, *_MINIMAL, *_LATER, *_MASKED, _CLOUD_CONFIG])
    return hashlib.sha256(words.encode() + module).hexdigest()[:12]


def base_root(say: Callable[[str], None]) -> Path:
    """The root, made where it is not there yet: one to three minutes, by the network. It is never written to.

    Raises RuntimeError with the last words of what failed.
    """
    folder = cache_folder() / "nspawn"
    root = folder / f"{SUITE}-{recipe()}"
    if root.exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    with _only_maker(folder / "lock", say):
        if root.exists():
            return root
        say(f"making the base root of booted nodes in {root}: Debian {SUITE}, once, one to three minutes")
        work = root.with_name(f"{root.name}.partial")
        if work.exists():
            shutil.rmtree(work)
        try:
            _make(work, say)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        work.rename(root)
    return root


@contextmanager
def _only_maker(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another process that makes the base root of booted nodes")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(root: Path, say: Callable[[str], None]) -> None:
    mirror = os.environ.get(MIRROR_VARIABLE, MIRROR)
    _run(["debootstrap", "--variant=minbase", f"--include={','.join(_MINIMAL)}", SUITE, str(root), mirror])
    say("the base root: cloud-init and what else a cloud image brings")
    _run(["chroot", str(root), "apt-get", "install", "-qy", "--no-install-recommends", *_LATER])
    _run(["chroot", str(root), "apt-get", "clean"])
    (root / "etc/hostname").unlink(missing_ok=True)
    (root / "etc/machine-id").write_text("")
    (root / "var/log/journal").mkdir(exist_ok=True)
    (root / "etc/cloud/cloud.cfg.d/90-rehearsal.cfg").write_text(_CLOUD_CONFIG)
    place = root / _MODULE_PLACE
    place.mkdir()
    for file in _MODULE.glob("*.py"):
        shutil.copy(file, place)
    for unit in _MASKED:
        name = unit if "." in unit else f"{unit}.service"
        (root / "etc/systemd/system" / name).symlink_to(os.devnull)


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} ... failed: {done.stdout.strip()[-1500:]}")


if __name__ == "__main__":
    print(base_root(lambda text: print(text, file=sys.stderr)))
