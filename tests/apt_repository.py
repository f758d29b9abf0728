"""A repository of Debian packages for booted machines: made, signed and served by the test that needs it."""

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
from tests.machines import Booted
from tests.served import Served

ARCHITECTURE = "amd64"
KEY = "key.asc"
# A machine that knows no source of its own: its mirror is not reached, and apt would try it again and again.
NO_SOURCES = {"/etc/apt/sources.list": "", "/etc/apt/apt.conf.d/90-test": 'Acquire::Languages "none";\n'}


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package to make. `files`: path -> text; a text that begins with `#!` can be executed.

    `scripts`: dpkg's own name (postinst, prerm, ...) -> text. `fields`: further fields of its control file.
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
        lines = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "Tests <tests@example.org>",
            "Description": "made by a test",
            **({"Depends": ", ".join(self.depends)} if self.depends else {}),
            **self.fields,
        }
        return "".join(f"{name}: {value}\n" for name, value in lines.items())

    def build(self, folder: Path) -> Path:
        """Its .deb file, in the folder."""
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


class Repository(Served):
    """Packages under `folder`, signed with a key of its own, over HTTP.

    `suite`: none for a flat repository, whose index lies beside its packages (NVIDIA's are so); else the name under
    dists/, with one component, `main`.
    """

    def __init__(self, folder: Path, network: Network, suite: str | None = None) -> None:
        super().__init__(folder, network)
        self.suite = suite
        self._packages: dict[str, Package] = {}
        # gpg's agent listens in its home, and the path of a socket is short.
        self._home = Path(tempfile.mkdtemp(prefix="gpg-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._gpg("--passphrase", "", "--quick-generate-key", "Tests <tests@example.org>", "ed25519", "sign", "never")
        listed = self._gpg("--with-colons", "--list-keys").splitlines()
        self.fingerprint = next(line.split(":")[9] for line in listed if line.startswith("fpr:"))
        (self.folder / KEY).write_text(self._gpg("--armor", "--export"))
        self._index()
        self.back()

    @property
    def key_url(self) -> str:
        return f"{self.url}/{KEY}"

    @property
    def where(self) -> str:
        """Suite and components, as apt's one-line format has them."""
        return f"{self.suite} main" if self.suite else "/"

    def add(self, *packages: Package) -> None:
        """Further packages, or other ones in their stead. Machines learn of them by `apt-get update`."""
        for package in packages:
            deb = package.build(self.folder)
            self._packages[deb.name] = package
        self._index()

    def be_source_of(self, node: Booted, name: str = "tests") -> None:
        """Stand in for a source that the machine's image brings, such as the distribution's own."""
        key = f"/usr/share/keyrings/{name}.asc"
        node.put(key, (self.folder / KEY).read_text())
        node.put(f"/etc/apt/sources.list.d/{name}.list", f"deb [signed-by={key}] {self.url} {self.where}\n")
        node.sh("apt-get update -q")

    def sign(self, file: Path) -> None:
        """Beside a file, its detached signature: FILE.sig."""
        self._gpg("--yes", "--detach-sign", str(file))

    def close(self) -> None:
        super().close()
        subprocess.run(["gpgconf", "--homedir", str(self._home), "--kill", "all"], check=True, capture_output=True)
        # The agent, as it ends, removes its own sockets.
        shutil.rmtree(self._home, ignore_errors=True)
        assert not self._home.exists()

    def _index(self) -> None:
        listed = "".join(self._entry(self.folder / name, package) for name, package in self._packages.items())
        top, name = self.folder, "Packages"
        fields = {"Origin": "tests", "Date": f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} UTC"}
        if self.suite:
            top, name = self.folder / "dists" / self.suite, f"main/binary-{ARCHITECTURE}/Packages"
            fields |= {"Codename": self.suite, "Components": "main", "Architectures": ARCHITECTURE}
        _write(top / name, listed)
        seen = f" {hashlib.sha256(listed.encode()).hexdigest()} {len(listed.encode())} {name}\n"
        release = "".join(f"{key}: {value}\n" for key, value in fields.items()) + "SHA256:\n" + seen
        _write(top / "Release", release)
        _write(top / "InRelease", self._gpg("--clearsign", given=release))
        _write(top / "Release.gpg", self._gpg("--armor", "--detach-sign", given=release))

    @staticmethod
    def _entry(deb: Path, package: Package) -> str:
        content = deb.read_bytes()
        file = f"Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        return package.control + file

    def _gpg(self, *arguments: str, given: str | None = None) -> str:
        return _run("gpg", "--homedir", str(self._home), "--batch", "--quiet", *arguments, given=given)


@contextmanager
def repository(folder: Path, network: Network, suite: str | None = None) -> Iterator[Repository]:
    """A repository until the end of `with`; empty at first."""
    made = Repository(folder, network, suite)
    try:
        yield made
    finally:
        made.close()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755 if text.startswith("#!") else 0o644)


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}: {done.stderr}"
    return done.stdout
