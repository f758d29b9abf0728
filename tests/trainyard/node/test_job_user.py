"""Files that a job writes: what it may replace them by, and what the agent then reads."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.node.job_user import (
    create_job_file,
    create_job_folder,
    delete_job_folder,
    list_job_folder,
    open_job_file,
    read_job_file,
)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of another folder, which the job cannot read."""
    file = tmp_path / "secret/log"
    file.parent.mkdir()
    file.write_text("credentials")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_job_folder(tmp_path / "job", None)
    return tmp_path / "job"


ATTACKS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda file, secret: file.symlink_to(secret),
    "hard link": lambda file, secret: os.link(secret, file),
    "named pipe": lambda file, _: os.mkfifo(file),
    "folder": lambda file, _: file.mkdir(),
    "device": lambda file, _: os.mknod(file, 0o20666, os.makedev(1, 3)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_other_than_a_regular_file_is_refused(folder: Path, secret: Path, attack: str) -> None:
    ATTACKS[attack](folder / "log", secret)
    with pytest.raises(OSError, match=r"no regular file|Too many levels of symbolic links"):
        read_job_file(folder / "log")


def test_a_link_in_place_of_a_folder_is_refused(folder: Path, secret: Path) -> None:
    (folder / "rank").symlink_to(secret.parent)
    with pytest.raises(PermissionError, match="no regular file of the job"):
        open_job_file(folder / "rank/log")


def test_a_limited_number_of_entries_is_listed(folder: Path) -> None:
    for number in range(5):
        (folder / str(number)).touch()
    assert sorted(list_job_folder(folder, 10)) == ["0", "1", "2", "3", "4"]
    assert len(list_job_folder(folder, 3)) == 3


@pytest.mark.parametrize("attack", ["link", "file", "deleted"])
def test_a_replaced_folder_has_no_entries(folder: Path, secret: Path, attack: str) -> None:
    folder.rmdir()
    if attack == "link":
        folder.symlink_to(secret.parent)
    elif attack == "file":
        folder.touch()
    assert list_job_folder(folder, 10) == []


def test_a_folder_of_any_depth_is_deleted_without_the_targets_of_links(folder: Path, secret: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("folder", dir_fd=descriptor)
        os.symlink(secret.parent, "link", dir_fd=descriptor)
        parent, descriptor = descriptor, os.open("folder", os.O_RDONLY, dir_fd=descriptor)
        os.close(parent)
    os.close(descriptor)
    delete_job_folder(folder)
    assert (folder.exists(), secret.read_text()) == (False, "credentials")


def test_the_end_of_a_long_file_is_read(folder: Path) -> None:
    (folder / "log").write_text("0123456789")
    assert read_job_file(folder / "log", limit=4) == b"6789"


def test_a_file_is_not_written_through_a_link(folder: Path, secret: Path) -> None:
    for name in ("request", "request.new"):
        (folder / name).symlink_to(secret)
    create_job_file(folder / "request", b"content", None)
    assert (secret.read_text(), (folder / "request").read_text()) == ("credentials", "content")
    assert (folder / "request").stat().st_mode & 0o777 == 0o600


def test_a_folder_of_the_job_is_not_created_through_a_link(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "logs").symlink_to(secret.parent)
    with pytest.raises(NotADirectoryError):
        create_job_folder(tmp_path / "logs", None, 0o700)
    assert secret.parent.stat().st_mode & 0o777 != 0o700
