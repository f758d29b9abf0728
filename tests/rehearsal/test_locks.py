"""Locks tell who holds them, and who was cut while he did."""

from pathlib import Path

import pytest

from rehearsal.locks import stack_lock


def test_who_was_cut_is_told_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("12")
    with stack_lock(tmp_path, "local") as cut:
        assert cut == "12"
    with stack_lock(tmp_path, "local") as cut:
        assert cut == ""


def test_who_ends_by_an_error_was_not_cut(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="any"), stack_lock(tmp_path, "local"):
        raise ValueError("any")
    with stack_lock(tmp_path, "local") as cut:
        assert cut == ""
