"""Options of kept rehearsals, and the refusal of those that cannot be kept or ended."""

from pathlib import Path

import pytest

from rehearsal.kept.down import end_kept_rehearsal
from rehearsal.kept.hold import DEFAULT_HOURS, check_can_keep, parse_hours
from rehearsal.locks import stack_lock
from trainyard.errors import InputError
from trainyard.models.kept_rehearsal import DESCRIPTION, KeptRehearsal


def write_description(folder: Path) -> None:
    kept = KeptRehearsal(
        stack="a",
        process=1,
        endpoint="http://127.0.0.1:1",
        engine="mocks",
        backend="process",
        environment=str(folder / "environment"),
        ends_at=0.0,
        arguments=("--keep",),
    )
    (folder / DESCRIPTION).write_text(kept.model_dump_json())


def code(error: "pytest.ExceptionInfo[InputError]") -> str:
    (problem,) = error.value.problems
    return problem.code


def test_hours_have_a_default() -> None:
    assert parse_hours(None) == DEFAULT_HOURS
    assert parse_hours("0.5") == 0.5


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "169", "two"])
def test_other_hours_are_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_hours(text)
    assert code(error) == "invalid_keep_hours"


def test_second_kept_rehearsal_of_a_stack_is_refused(tmp_path: Path) -> None:
    write_description(tmp_path)
    with pytest.raises(InputError) as error:
        check_can_keep(tmp_path, "a", preview=False)
    assert code(error) == "already_kept"


def test_preview_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        check_can_keep(tmp_path, "a", preview=True)
    assert code(error) == "nothing_to_keep"


def test_rehearsal_in_another_account_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InputError) as error:
        check_can_keep(tmp_path, "a", preview=False)
    assert code(error) == "account_not_own"


def test_lock_of_a_kept_rehearsal_names_down(tmp_path: Path) -> None:
    write_description(tmp_path)
    with (
        stack_lock(tmp_path, "a"),
        pytest.raises(InputError, match="trainyard rehearse --down -s a"),
        stack_lock(tmp_path, "a"),
    ):
        pass


def test_down_without_a_kept_rehearsal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rehearsal of this stack is kept") as error:
        end_kept_rehearsal(tmp_path, "a")
    assert code(error) == "not_kept"


def test_down_does_not_end_a_rehearsal_that_is_not_kept(tmp_path: Path) -> None:
    with stack_lock(tmp_path, "a"), pytest.raises(InputError, match="Wait until it ends") as error:
        end_kept_rehearsal(tmp_path, "a")
    assert code(error) == "not_kept"


def test_down_after_a_kill_removes_the_leftovers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_description(tmp_path)
    (tmp_path / "lock").write_text("4711")
    (tmp_path / "nodes").mkdir()
    assert end_kept_rehearsal(tmp_path, "a") is None
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
    assert "the kept rehearsal was killed" in capsys.readouterr().err
