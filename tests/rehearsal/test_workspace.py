"""Removal of the folders of killed accounts in build/."""

import os
import subprocess
from pathlib import Path

from rehearsal.workspace import account_folder, remove_stale_accounts


def test_only_folders_of_killed_accounts_are_removed(tmp_path: Path) -> None:
    exited = subprocess.Popen(["true"])
    exited.wait()
    stale, running, stack = (account_folder(tmp_path, pid) for pid in (exited.pid, os.getpid(), exited.pid + 10**7))
    for folder in (stale, running, stack, tmp_path / "aws-training"):
        folder.mkdir()
    (stack / "lock").touch()
    remove_stale_accounts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([running, stack, tmp_path / "aws-training"])
