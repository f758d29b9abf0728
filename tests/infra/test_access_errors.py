"""A provider without access to AWS is one user error of the preview, with the action."""

from collections.abc import Mapping
from typing import Any

import pytest

from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.mocks import UpError, up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import ROOT
from tests.problems import rejects
from tools.stack_files import read_stack_file


class Inaccessible(StaticAccount):
    """An account whose lookups fail with the provider's text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise RequestFailedError(self._text)


@pytest.mark.parametrize(
    ("text", "code", "action"),
    [
        ("No valid credential sources found.\nPlease see https://...", "credentials_missing", "aws sso login"),
        (
            "unable to validate AWS credentials.\nDetails: no valid credential sources for found.\n"
            "Error: failed to refresh cached credentials, no EC2 IMDS role found",
            "credentials_missing",
            "aws configure",
        ),
        (
            "unable to validate AWS credentials.\nDetails: no valid credential sources for found.\n"
            "Error: failed to refresh cached credentials, the SSO session has expired or is invalid",
            "credentials_expired",
            "aws sso login --profile research",
        ),
        (
            "operation error STS: GetCallerIdentity, api error ExpiredToken: The security token included in the "
            "request is expired",
            "credentials_expired",
            "Renew them",
        ),
        ("Invalid credentials configured.\nPlease see https://...", "credentials_invalid", "aws configure"),
        ("failed to get shared config profile, research", "profile_missing", "aws configure --profile research"),
        ("Missing region information\nMake sure you have set your AWS region", "region_missing", "aws:region"),
    ],
)
def test_provider_without_access_is_a_user_error(
    text: str, code: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    config = {**read_stack_file("local"), "aws:profile": "research"}
    with rejects(code, action):
        up(config, "local", ROOT, preview=True, account=Inaccessible(text))


def test_other_errors_of_lookups_are_failures() -> None:
    with pytest.raises(UpError, match="UnauthorizedOperation"):
        up(read_stack_file("local"), "local", ROOT, preview=True, account=Inaccessible("UnauthorizedOperation: denied"))
