"""Builds, signs and serves a repository of Debian packages for booted machines."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rehearsal.hypervisor.nspawn.network import Network
from tests.file_server import FileServer
from tests.machines import BootedMachine

ARCHITECTURE = "amd64"
KEY = "key.asc"
# Files that remove the package sources of the image: apt would retry its mirror, which is not reachable.
NO_SOURCES = {"/etc/apt/sources.list": "", "/etc/apt/apt.conf.d/90-test": 'Acquire::Languages "none";\n'}


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package to build. `files`: path -> text; a text that starts with `#!` becomes executable.

    `scripts`: maintainer script (postinst, prerm, ...) -> text. `fields`: additional fields of the control file.
    """

    name: str
    version: str = "1.0-1"
    depends: Sequence[str] = ()
    architecture: str = "all"
    files: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def control(self) -> str:
        """Text of the control file."""
        lines = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "Tests <tests@example.org>",
            "Description": "built by a test",
            **({"Depends": ", ".join(self.depends)} if self.depends else {}),
            **self.fields,
        }
        return "".join(f"{name}: {value}\n" for name, value in lines.items())

    def build(self, folder: Path) -> Path:
        """Build the .deb file in the folder. Returns its path."""
        deb = folder / f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"
        with tempfile.TemporaryDirectory() as work:
            tree = Path(work)
            tree.chmod(0o755)
            for path, text in self.files.items():
                _write(tree / path.removeprefix("/"), text)
            _write(tree / "DEBIAN/control", self.control)
            for script, text in self.scripts.items():
                _write(tree / "DEBIAN" / script, text)
            _run("dpkg-deb", "--build", "--root-owner-group", "-Znone", work, str(deb))
        return deb


class Repository(FileServer):
    """A repository in `folder`, signed with a new key and served over HTTP.

    `suite`: the name under dists/, with one component, `main`; None for a flat repository, whose index is in the folder
    of the packages, as in NVIDIA's repositories.
    """

    def __init__(self, folder: Path, network: Network, suite: str | None = None) -> None:
        super().__init__(folder, network)
        self.suite = suite
        self._packages: dict[str, Package] = {}
        # The socket of the gpg agent is in its home folder, and the path of a socket must be short.
        self._home = Path(tempfile.mkdtemp(prefix="gpg-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._gpg("--passphrase", "", "--quick-generate-key", "Tests <tests@example.org>", "ed25519", "sign", "never")
        keys = self._gpg("--with-colons", "--list-keys").splitlines()
        self.fingerprint = next(line.split(":")[9] for line in keys if line.startswith("fpr:"))
        (self.folder / KEY).write_text(self._gpg("--armor", "--export"))
        self._index()
        self.start()

    @property
    def key_url(self) -> str:
        """URL of the public key."""
        return f"{self.url}/{KEY}"

    @property
    def suite_and_components(self) -> str:
        """Suite and components in apt's one-line format."""
        return f"{self.suite} main" if self.suite else "/"

    def add(self, *packages: Package) -> None:
        """Add or replace packages. Machines see them after `apt-get update`."""
        for package in packages:
            deb = package.build(self.folder)
            self._packages[deb.name] = package
        self._index()

    def add_source_to(self, node: BootedMachine, name: str = "tests") -> None:
        """Add this repository to the package sources of a machine."""
        key = f"/usr/share/keyrings/{name}.asc"
        node.write_file(key, (self.folder / KEY).read_text())
        node.write_file(
            f"/etc/apt/sources.list.d/{name}.list", f"deb [signed-by={key}] {self.url} {self.suite_and_components}\n"
        )
        node.run_script("apt-get update -q")

    def sign(self, file: Path) -> None:
        """Write the detached signature of a file to FILE.sig."""
        self._gpg("--yes", "--detach-sign", str(file))

    def close(self) -> None:
        """Stop the server and the gpg agent, and remove the agent's home folder."""
        super().close()
        subprocess.run(["gpgconf", "--homedir", str(self._home), "--kill", "all"], check=True, capture_output=True)
        # The agent also removes its sockets when it ends.
        shutil.rmtree(self._home, ignore_errors=True)
        assert not self._home.exists()

    def _index(self) -> None:
        packages = "".join(self._entry(self.folder / name, package) for name, package in self._packages.items())
        top, name = self.folder, "Packages"
        fields = {"Origin": "tests", "Date": f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} UTC"}
        if self.suite:
            top, name = self.folder / "dists" / self.suite, f"main/binary-{ARCHITECTURE}/Packages"
            fields |= {"Codename": self.suite, "Components": "main", "Architectures": ARCHITECTURE}
        _write(top / name, packages)
        checksum = f" {hashlib.sha256(packages.encode()).hexdigest()} {len(packages.encode())} {name}\n"
        release = "".join(f"{key}: {value}\n" for key, value in fields.items()) + "SHA256:\n" + checksum
        _write(top / "Release", release)
        _write(top / "InRelease", self._gpg("--clearsign", stdin=release))
        _write(top / "Release.gpg", self._gpg("--armor", "--detach-sign", stdin=release))

    @staticmethod
    def _entry(deb: Path, package: Package) -> str:
        content = deb.read_bytes()
        file = f"Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        return package.control + file

    def _gpg(self, *arguments: str, stdin: str | None = None) -> str:
        return _run("gpg", "--homedir", str(self._home), "--batch", "--quiet", *arguments, stdin=stdin)


@contextmanager
def repository(folder: Path, network: Network, suite: str | None = None) -> Iterator[Repository]:
    """Create an empty repository and serve it until the context manager exits."""
    created = Repository(folder, network, suite)
    try:
        yield created
    finally:
        created.close()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755 if text.startswith("#!") else 0o644)


def _run(*command: str, stdin: str | None = None) -> str:
    process = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert process.returncode == 0, f"{' '.join(command)}: {process.returncode}: {process.stderr}"
    return process.stdout
