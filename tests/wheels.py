"""Builds wheels for tests, in the layout of a PEP 503 package index: <folder>/simple/<name>/."""

import base64
import hashlib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel with one module. `text`: source code of the module."""

    name: str
    version: str = "1.0"
    text: str = ""

    def build(self, folder: Path) -> Path:
        """Build the wheel below the folder. Returns its path."""
        metadata = f"{self.name}-{self.version}.dist-info"
        files = {
            f"{self.name}/__init__.py": self.text,
            f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n",
            f"{metadata}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{path},sha256={_hash(text)},{len(text.encode())}\n" for path, text in files.items())
        files[f"{metadata}/RECORD"] = f"{record}{metadata}/RECORD,,\n"
        wheel = folder / "simple" / self.name / f"{self.name}-{self.version}-py3-none-any.whl"
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        return wheel


def lock_text(wheels: Iterable[Path]) -> str:
    """Return a lock of these wheels, with their hashes."""
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return "".join(lines)


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


# Replace the packages that the check of the job environment imports, which are 5 GB.
STUB_WHEELS = (
    Wheel(name="torch", version="2.15.0", text="class cuda:\n    device_count = staticmethod(lambda: 0)\n"),
    Wheel(name="s3torchconnector", version="1.5.0"),
)
