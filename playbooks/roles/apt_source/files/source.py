"""Add a package source to apt, trusted for one signing key. Prints `changed` if anything was changed.

source.py NAME URL SUITE COMPONENTS KEY_URL FINGERPRINT

A source that the machine image already has stays unchanged: apt refuses a source that is listed twice with two keys.
"""

import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

ETC = Path("/etc/apt")
RETRY_DELAYS_SECONDS = (1, 2, 4, 8, 16, 32)
T = TypeVar("T")


def retry(message: str, call: Callable[[], T]) -> T:
    """Return the result of `call`, which is repeated after an OSError. Raises SystemExit after the last attempt."""
    for delay in (*RETRY_DELAYS_SECONDS, None):
        try:
            return call()
        except OSError as error:  # includes urllib's errors
            if delay is None:
                raise SystemExit(f"{message}: {error} ({len(RETRY_DELAYS_SECONDS) + 1} attempts)") from None
            time.sleep(delay)
    raise AssertionError


def run(*command: str, stdin: bytes | None = None) -> bytes:
    """Return the standard output of a command. Raises OSError with its error output if it fails."""
    process = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if process.returncode:
        raise OSError((process.stderr or process.stdout).decode(errors="replace").strip())
    return process.stdout


def is_listed_elsewhere(url: str, suite: str, source_file: Path) -> bool:
    """Return whether another file than `source_file` lists this source, by the URL of the index that apt would request.

    The text of the files is not compared: apt has several formats, and variables such as $(ARCH) in NVIDIA's.
    """
    index = f"{url.rstrip('/')}/{f'dists/{suite}/' if suite != '/' else ''}InRelease"
    parts = ETC / "sources.list.d"
    with tempfile.TemporaryDirectory() as others:
        for file in parts.glob("*"):
            if file != source_file:
                Path(others, file.name).symlink_to(file)
        uris = run("apt-get", "update", "--print-uris", f"-oDir::Etc::sourceparts={others}").decode()
    return any(shlex.split(line)[0].replace("/./", "/") == index for line in uris.splitlines())


def fingerprints(keys: bytes) -> set[str]:
    """Return the fingerprints of the primary keys in a key file."""
    listing = run("gpg", "--batch", "--quiet", "--with-colons", "--show-keys", stdin=keys).decode().splitlines()
    after_primary = [line for previous, line in pairwise(listing) if previous.startswith("pub:")]
    return {line.split(":")[9] for line in after_primary if line.startswith("fpr:")}


def export_key(keys: bytes, fingerprint: str) -> bytes:
    """Return the key with this fingerprint alone, in the binary format that apt reads."""
    with tempfile.TemporaryDirectory() as home:
        gpg = ("gpg", "--batch", "--quiet", "--homedir", home, "--no-autostart")
        run(*gpg, "--import", stdin=keys)
        return run(*gpg, "--export", fingerprint)


def download_key(url: str, fingerprint: str) -> bytes:
    """Return the signing key. Raises SystemExit if the download fails or holds no key with this fingerprint."""

    def download() -> bytes:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 the role's own URL
            content: bytes = response.read()
            return content

    keys = retry(f"cannot download the key {url}", download)
    available = fingerprints(keys)
    if fingerprint not in available:
        names = ", ".join(sorted(available)) or "no key"
        raise SystemExit(f"{url} has {names}, not the key {fingerprint}: its source is not trusted")
    return export_key(keys, fingerprint)


def has_index(url: str, *options: str) -> bool:
    """Return whether apt has downloaded the index of this source."""
    targets = run("apt-get", "indextargets", *options, "--format", "$(REPO_URI)", "Created-By: Packages").decode()
    return url.rstrip("/") in {line.rstrip("./") for line in targets.splitlines()}


def only_sources_in(file: Path) -> tuple[str, ...]:
    """Return the apt options that restrict it to the sources in this file."""
    sources = (f"-oDir::Etc::sourcelist={file}", "-oDir::Etc::sourceparts=-")
    return (*sources, "-oAPT::Get::List-Cleanup=0", "-oAPT::Update::Error-Mode=any")


def update_index(url: str, *options: str) -> None:
    """Download the index of this source. Raises SystemExit after the last attempt."""
    command = ("apt-get", "-q", "update", *options)

    def update() -> None:
        run(*command)
        if not has_index(url, *options):
            raise OSError("apt has no index of it")

    retry(f"cannot read the source {url} ({shlex.join(command)})", update)


def main(name: str, url: str, suite: str, components: str, key_url: str, fingerprint: str) -> None:
    """Write key and source, and download the index, as far as they are missing or differ."""
    keyring, source_file = ETC / f"keyrings/trainyard-{name}.gpg", ETC / f"sources.list.d/trainyard-{name}.list"
    fingerprint = fingerprint.replace(" ", "").upper()
    if is_listed_elsewhere(url, suite, source_file):
        changed = source_file.exists()
        source_file.unlink(missing_ok=True)
        if not has_index(url):
            update_index(url)
            changed = True
    else:
        changed = False
        if not keyring.exists() or fingerprints(keyring.read_bytes()) != {fingerprint}:
            key = download_key(key_url, fingerprint)
            keyring.parent.mkdir(exist_ok=True)
            keyring.write_bytes(key)
            keyring.chmod(0o644)
            changed = True
        line = " ".join(["deb", f"[signed-by={keyring}]", url, suite, components]).strip() + "\n"
        if not source_file.exists() or source_file.read_text() != line:
            source_file.write_text(line)
            changed = True
        if changed or not has_index(url, *only_sources_in(source_file)):
            update_index(url, *only_sources_in(source_file))
            changed = True
    if changed:
        print("changed")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
