"""Archives with content that Trainyard does not create."""

import io
import tarfile
from pathlib import Path

import pytest

from infra.packaging.archive import Entry, pack
from trainyard.archives import extract_archive
from trainyard.node import bootstrap


def archive(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("first.py"))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)
    return buffer.getvalue()


MALICIOUS = {
    "parent": archive("../outside"),
    "absolute": archive("/tmp/trainyard-outside"),
    "link": archive("link", tarfile.SYMTYPE, "/etc"),
    "hard link": archive("link", tarfile.LNKTYPE, "first.py"),
    "device": archive("device", tarfile.CHRTYPE),
    "pipe": archive("pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_archive_is_refused_before_a_file_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no regular file below its folder"):
        extract_archive(io.BytesIO(MALICIOUS[name]), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", MALICIOUS)
def test_the_bootstrap_refuses_a_malicious_bundle(tmp_path: Path, name: str) -> None:
    (tmp_path / "bundle.tar").write_bytes(MALICIOUS[name])
    with pytest.raises(bootstrap.BootstrapError, match="no regular file below its folder"):
        bootstrap.unpack(tmp_path / "bundle.tar", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_files_are_extracted_with_their_modes(tmp_path: Path) -> None:
    packed = pack({"a/run.sh": Entry(b"run", executable=True), "b.py": Entry(b"code")})
    extract_archive(io.BytesIO(packed.data), tmp_path)
    assert (tmp_path / "a/run.sh").read_text() == "run"
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a/run.sh", "b.py")] == [0o755, 0o644]
