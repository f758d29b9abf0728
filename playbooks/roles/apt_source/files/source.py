"""Has apt know a package source, and trust it for one key. Says `changed` where it had not been so.

source.py NAME URL SUITE COMPONENTS KEY_URL FINGERPRINT

A source that the machine's image brings already is left as it is: apt refuses one that is listed twice with two keys.
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
DELAYS = (1, 2, 4, 8, 16, 32)  # seconds between tries
T = TypeVar("T")


def tried(what: str, call: Callable[[], T]) -> T:
    """The call's value, from as many tries as it takes. SystemExit with its last words after the last."""
    for delay in (*DELAYS, None):
        try:
            return call()
        except OSError as error:  # also urllib's, and subprocess.CalledProcessError made one by `run`
            if delay is None:
                raise SystemExit(f"{what}: {error} ({len(DELAYS) + 1} tries)") from None
            time.sleep(delay)
    raise AssertionError


def run(*command: str, given: bytes | None = None) -> bytes:
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    if done.returncode:
        raise OSError((done.stderr or done.stdout).decode(errors="replace").strip())
    return done.stdout


def named_elsewhere(url: str, suite: str, own: Path) -> bool:
    """Whether a source that is not ours is this one, by the address at which apt would ask for its index.

    By no text of files: apt has several forms of them, and variables, as $(ARCH) in NVIDIA's.
    """
    index = f"{url.rstrip('/')}/{f'dists/{suite}/' if suite != '/' else ''}InRelease"
    parts = ETC / "sources.list.d"
    with tempfile.TemporaryDirectory() as others:
        for file in parts.glob("*"):
            if file != own:
                Path(others, file.name).symlink_to(file)
        asked = run("apt-get", "update", "--print-uris", f"-oDir::Etc::sourceparts={others}").decode()
    return any(shlex.split(line)[0].replace("/./", "/") == index for line in asked.splitlines())


def fingerprints(key: bytes) -> set[str]:
    """Of the primary keys in a file of keys."""
    listed = run("gpg", "--batch", "--quiet", "--with-colons", "--show-keys", given=key).decode().splitlines()
    follows = [line for before, line in pairwise(listed) if before.startswith("pub:")]
    return {line.split(":")[9] for line in follows if line.startswith("fpr:")}


def only(key: bytes, fingerprint: str) -> bytes:
    """That key alone, as apt reads it."""
    with tempfile.TemporaryDirectory() as home:
        gpg = ("gpg", "--batch", "--quiet", "--homedir", home, "--no-autostart")
        run(*gpg, "--import", given=key)
        return run(*gpg, "--export", fingerprint)


def fetched(url: str, fingerprint: str) -> bytes:
    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 the play's own URL
            content: bytes = answer.read()
            return content

    key = tried(f"can't fetch the key {url}", fetch)
    seen = fingerprints(key)
    if fingerprint not in seen:
        told = ", ".join(sorted(seen)) or "no key"
        raise SystemExit(f"{url} holds {told}, not the key {fingerprint}: its source is not trusted")
    return only(key, fingerprint)


def indexed(url: str, *options: str) -> bool:
    """Whether apt holds the index of this source."""
    told = run("apt-get", "indextargets", *options, "--format", "$(REPO_URI)", "Created-By: Packages").decode()
    return url.rstrip("/") in {line.rstrip("./") for line in told.splitlines()}


def alone(file: Path) -> tuple[str, ...]:
    """Options by which apt looks at the sources of this file only."""
    only_this = (f"-oDir::Etc::sourcelist={file}", "-oDir::Etc::sourceparts=-")
    return (*only_this, "-oAPT::Get::List-Cleanup=0", "-oAPT::Update::Error-Mode=any")


def update(url: str, *options: str) -> None:
    command = ("apt-get", "-q", "update", *options)

    def once() -> None:
        run(*command)
        if not indexed(url, *options):
            raise OSError("apt has no index of it")

    tried(f"can't read the source {url} ({shlex.join(command)})", once)


def main(name: str, url: str, suite: str, components: str, key_url: str, fingerprint: str) -> None:
    keyring, own = ETC / f"keyrings/trainyard-{name}.gpg", ETC / f"sources.list.d/trainyard-{name}.list"
    fingerprint = fingerprint.replace(" ", "").upper()
    if named_elsewhere(url, suite, own):
        changed = own.exists()
        own.unlink(missing_ok=True)
        if not indexed(url):
            update(url)
            changed = True
    else:
        changed = False
        if not keyring.exists() or fingerprints(keyring.read_bytes()) != {fingerprint}:
            key = fetched(key_url, fingerprint)
            keyring.parent.mkdir(exist_ok=True)
            keyring.write_bytes(key)
            keyring.chmod(0o644)
            changed = True
        line = " ".join(["deb", f"[signed-by={keyring}]", url, suite, components]).strip() + "\n"
        if not own.exists() or own.read_text() != line:
            own.write_text(line)
            changed = True
        if changed or not indexed(url, *alone(own)):
            update(url, *alone(own))
            changed = True
    if changed:
        print("changed")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
