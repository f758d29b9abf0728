"""The work folder: what a killed run left is used by the same words, and by no others."""

from pathlib import Path

import pytest

from trainer.prepare.parts import Made
from trainer.prepare.work import Work, record
from trainyard.base import InputError
from trainyard.models.dataset import Shard

MADE = Made(shard=Shard(key="a.bin", count=1, bytes=1, sha256="0" * 64), held_out=0, samples=1, left_out=0)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder in which part `x` is done and another was under way."""
    folder = tmp_path / "work"
    work = Work(folder, {"--field": "text"})
    record(folder, "x", MADE)
    (work.temporary / "y.bin").write_bytes(b"half")
    work.close()
    return folder


def test_the_same_words_go_on(killed: Path) -> None:
    work = Work(killed, {"--field": "text"})
    assert work.said == f"goes on in {killed}"
    assert (work.made("x"), work.made("y")) == (MADE, None)
    assert not list(work.temporary.iterdir())
    work.close()


def test_other_words_begin_anew_and_say_so(killed: Path) -> None:
    work = Work(killed, {"--field": "body"})
    assert work.said == f"{killed} was begun with other words (--field): begun anew"
    assert work.made("x") is None
    assert work.abandoned == {"a.bin"}
    work.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    work = Work(tmp_path / "work", {})
    with pytest.raises(InputError, match="another process is at work on this target"):
        Work(tmp_path / "work", {})
    work.close()


def test_a_folder_of_the_users_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds other files\. Name an empty folder"):
        Work(tmp_path, {})
    assert (tmp_path / "thesis.tex").exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--work = .*: can't be written: Not a directory"):
        Work(tmp_path / "file" / "work", {})
