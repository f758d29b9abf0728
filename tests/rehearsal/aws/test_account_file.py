"""The file of an account: its secrets differ in each account, and only its user can read it."""

import os
import stat
from pathlib import Path

import pytest

from rehearsal.aws.account_file import AccountSecrets
from rehearsal.aws.process import EmulatedAws


def test_secrets_differ_in_each_account() -> None:
    first, second = AccountSecrets.create(), AccountSecrets.create()
    values = [
        *(first.token, second.token),
        *(
            part
            for each in (first, second)
            for key in (each.operator, each.adapter, each.ec2)
            for part in (key.id, key.secret)
        ),
    ]
    assert len(set(values)) == len(values)


def test_text_of_the_secrets_does_not_contain_them() -> None:
    account = AccountSecrets.create()
    assert account.operator.secret not in repr(account)
    assert account.token not in repr(account)


def test_file_is_private_for_any_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with EmulatedAws.start(tmp_path / "aws") as running:
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "aws", tmp_path / "aws/account.json")]
            assert EmulatedAws.attach(tmp_path / "aws/account.json").secrets == running.secrets
    finally:
        os.umask(old)
    assert modes == [0o700, 0o600]


def test_stopped_account_cannot_be_attached(tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path):
        pass
    with pytest.raises(ValueError, match="no emulated AWS responds"):
        EmulatedAws.attach(tmp_path / "account.json")
