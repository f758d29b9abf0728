"""The stack lock yields the process id of a holder that was killed."""

from pathlib import Path

import pytest

from rehearsal.locks import stack_lock


def test_lock_yields_the_process_id_of_a_killed_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("12")
    with stack_lock(tmp_path, "local") as killed_holder:
        assert killed_holder == "12"
    with stack_lock(tmp_path, "local") as killed_holder:
        assert killed_holder == ""


def test_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="any"), stack_lock(tmp_path, "local"):
        raise ValueError("any")
    with stack_lock(tmp_path, "local") as killed_holder:
        assert killed_holder == ""
