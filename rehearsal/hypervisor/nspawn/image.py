"""The base image of booted nodes: a Debian 12 root file system with the packages of a cloud image, by debootstrap.

It is cached under $XDG_CACHE_HOME/trainyard (~/.cache/trainyard). Its name contains a hash of its recipe, so a changed
recipe creates a new image.
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
PYTHON = (3, 11)  # Python of Debian 12: a virtual environment that is shared with nodes must use it
MIRROR = "http://deb.debian.org/debian"
MIRROR_VARIABLE = "TRAINYARD_DEBIAN_MIRROR"
_MINIMAL = ("ca-certificates", "dbus", "iproute2", "procps", "systemd", "systemd-sysv")
# Packages of a cloud image that the playbooks require. debootstrap cannot resolve the dependencies of cloud-init. gpg
# and mdadm are not part of every cloud image: roles install them if they are missing, but rehearsed nodes reach no
# package repository.
_ADDITIONAL = (
    "chrony",
    "cloud-init",
    "gpg",
    "mdadm",
    "nftables",
    "python3-apt",
    "python3-venv",
    "sudo",
    "udev",
    "xfsprogs",
)
_MODULE = Path(__file__).parent / "datasource"
_MODULE_FOLDER = "usr/lib/python3/dist-packages/trainyard_rehearsal"
_CLOUD_CONFIG = """\
datasource_list: [ Ec2 ]
datasource_pkg_list: [ trainyard_rehearsal ]
datasource: {Ec2: {metadata_urls: ["http://169.254.169.254:80"], max_wait: 120, timeout: 5}}
network: {config: disabled}
locale: false
"""
# Units that a container must not run: it cannot set the clock or change the kernel.
_MASKED = ("systemd-timesyncd", "systemd-resolved", "e2scrub_reap", "apt-daily.timer", "apt-daily-upgrade.timer")


def cache_folder() -> Path:
    """Return the cache folder of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"


def recipe_hash() -> str:
    """Return twelve hexadecimal digits: a hash of everything that the image is built from."""
    module = b"".join(file.read_bytes() for file in sorted(_MODULE.glob("*.py")))
    text = "\n".join([SUITE, *_MINIMAL, *_ADDITIONAL, *_MASKED, _CLOUD_CONFIG])
    return hashlib.sha256(text.encode() + module).hexdigest()[:12]


def base_root(log: Callable[[str], None]) -> Path:
    """Return the root folder of the image. If it does not exist, build it, which takes one to three minutes.

    Nothing writes to the folder later. Raises RuntimeError with the output of a failed command.
    """
    folder = cache_folder() / "nspawn"
    root = folder / f"{SUITE}-{recipe_hash()}"
    if root.exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    with _build_lock(folder / "lock", log):
        if root.exists():
            return root
        log(f"building the image of booted nodes in {root}: Debian {SUITE}, once, one to three minutes")
        partial = root.with_name(f"{root.name}.partial")
        if partial.exists():
            shutil.rmtree(partial)
        try:
            _build(partial, log)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(root)
    return root


@contextmanager
def _build_lock(lock: Path, log: Callable[[str], None]) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log("waiting for another process that builds the image of booted nodes")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(root: Path, log: Callable[[str], None]) -> None:
    mirror = os.environ.get(MIRROR_VARIABLE, MIRROR)
    _run(["debootstrap", "--variant=minbase", f"--include={','.join(_MINIMAL)}", SUITE, str(root), mirror])
    log("installing cloud-init and other packages of a cloud image")
    _run(["chroot", str(root), "apt-get", "install", "-qy", "--no-install-recommends", *_ADDITIONAL])
    _run(["chroot", str(root), "apt-get", "clean"])
    (root / "etc/hostname").unlink(missing_ok=True)
    (root / "etc/machine-id").write_text("")
    (root / "var/log/journal").mkdir(exist_ok=True)
    (root / "etc/cloud/cloud.cfg.d/90-rehearsal.cfg").write_text(_CLOUD_CONFIG)
    module = root / _MODULE_FOLDER
    module.mkdir()
    for file in _MODULE.glob("*.py"):
        shutil.copy(file, module)
    for unit in _MASKED:
        name = unit if "." in unit else f"{unit}.service"
        (root / "etc/systemd/system" / name).symlink_to(os.devnull)


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} ... failed: {process.stdout.strip()[-1500:]}")


if __name__ == "__main__":
    print(base_root(lambda text: print(text, file=sys.stderr)))  # noqa: T201
