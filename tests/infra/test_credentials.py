"""The warning of credentials that expire before the launch's deadline."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.validators.credentials import expiring_credentials
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import ROOT
from tools.stack_files import read_stack_file
from trainyard.config import CONFIG_KEY
from trainyard.config.settings import StackSettings


def settings_of(stack: str, **changes: Any) -> StackSettings:
    """Return the settings of a shipped stack, with a startup timeout of 45 minutes."""
    return StackSettings.model_validate(
        {**read_stack_file(stack)[CONFIG_KEY], "launch": {"startup_timeout_minutes": 45}, **changes}
    )


CPU = settings_of("local")
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
KEY = {"AWS_ACCESS_KEY_ID": "ASIA", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}


@pytest.mark.parametrize("text", ["2026-11-23T12:44:00Z", "2026-11-23T12:44:00", "2026-11-23T13:44:00+01:00"])
def test_static_credentials_that_expire_too_early_are_a_warning(text: str) -> None:
    warning = expiring_credentials({**KEY, "AWS_CREDENTIAL_EXPIRATION": text}, CPU, NOW)
    assert warning is not None
    assert "expire in 44 minutes" in warning
    assert "launch.startup_timeout_minutes (45)" in warning


@pytest.mark.parametrize(
    "environment",
    [
        {**KEY, "AWS_CREDENTIAL_EXPIRATION": "2026-11-23T12:46:00Z"},
        {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s"},  # of a user, without expiration
        {"AWS_PROFILE": "sso", "AWS_CREDENTIAL_EXPIRATION": "2026-11-23T12:01:00Z"},
        {},
    ],
)
def test_other_credentials_are_no_warning(environment: dict[str, str]) -> None:
    assert expiring_credentials(environment, CPU, NOW) is None


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("AWS_SHARED_CREDENTIALS_FILE", "[pasted]\naws_access_key_id = a\naws_session_token = t\n[other]\n"),
        ("AWS_CONFIG_FILE", "[profile pasted]\naws_access_key_id = a\naws_session_token = t\n"),
    ],
)
def test_session_token_of_a_profile_is_a_warning(file: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content)
    environment = {"HOME": str(tmp_path), file: str(tmp_path / "file")}
    assert expiring_credentials(environment, CPU, NOW, "other") is None
    assert "the aws_session_token of profile pasted is temporary" in (
        expiring_credentials(environment, CPU, NOW, "pasted") or ""
    )


@pytest.mark.parametrize(
    ("capacity", "minutes"), [({}, 75), ({"wait_minutes": 120}, 165), ({"reserve": False}, 45), ({"spot": {}}, 45)]
)
def test_deadline_includes_the_wait_for_capacity(capacity: dict[str, Any], minutes: int) -> None:
    settings = settings_of("a100-cluster", capacity=capacity)

    def warning(after: int) -> str | None:
        expiration = (NOW + timedelta(minutes=after)).isoformat()
        return expiring_credentials({**KEY, "AWS_CREDENTIAL_EXPIRATION": expiration}, settings, NOW)

    assert warning(minutes) is None
    text = warning(minutes - 1)
    assert text is not None
    assert ("capacity.wait_minutes" in text) == (minutes > 45)


def test_unknown_expiration_of_a_session_token_is_a_warning() -> None:
    warning = expiring_credentials(KEY, CPU, NOW)
    assert warning is not None
    assert "its expiration is unknown" in warning


def test_unreadable_expiration_is_a_warning() -> None:
    warning = expiring_credentials({**KEY, "AWS_CREDENTIAL_EXPIRATION": "soon"}, CPU, NOW)
    assert warning == "AWS_CREDENTIAL_EXPIRATION = 'soon' is not a time in ISO 8601: the expiration is not validated"


def test_preview_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    for key, value in {**KEY, "AWS_CREDENTIAL_EXPIRATION": soon.isoformat()}.items():
        monkeypatch.setenv(key, value)
    up(read_stack_file("local"), "local", ROOT, preview=True, account=StaticAccount())
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "the AWS credentials of the environment expire in" in warning
