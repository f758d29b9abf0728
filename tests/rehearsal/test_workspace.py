"""What rehearsals and accounts leave in build/ when they are killed goes with a later one."""

import os
import subprocess
from pathlib import Path

from rehearsal.workspace import account_folder, sweep_accounts


def test_only_what_a_dead_account_left_is_swept(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, living, stack = (account_folder(tmp_path, pid) for pid in (gone.pid, os.getpid(), gone.pid + 10**7))
    for folder in (left, living, stack, tmp_path / "aws-training"):
        folder.mkdir()
    (stack / "lock").touch()
    sweep_accounts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, stack, tmp_path / "aws-training"])
