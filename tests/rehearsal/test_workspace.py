"""Removal of the folders of killed accounts in build/."""

import os
import subprocess
from pathlib import Path

import pytest

from rehearsal.workspace import (
    Options,
    account_folder,
    change_settings,
    parse_changes,
    read_stack,
    remove_stale_accounts,
)
from tests.problems import rejects


def test_only_folders_of_killed_accounts_are_removed(tmp_path: Path) -> None:
    exited = subprocess.Popen(["true"])
    exited.wait()
    stale, running, stack = (account_folder(tmp_path, pid) for pid in (exited.pid, os.getpid(), exited.pid + 10**7))
    for folder in (stale, running, stack, tmp_path / "aws-training"):
        folder.mkdir()
    (stack / "lock").touch()
    remove_stale_accounts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([running, stack, tmp_path / "aws-training"])


def test_changes_replace_settings() -> None:
    raw = {"nodes": 4, "capacity": {"wait_minutes": 5}}
    changes = parse_changes(["capacity.reserve=false", "fsx.export=true", "nodes=8"])
    assert change_settings(raw, changes) == {
        "nodes": 8,
        "capacity": {"wait_minutes": 5, "reserve": False},
        "fsx": {"export": True},
    }
    assert raw["nodes"] == 4


@pytest.mark.parametrize("spec", ["capacity", "=1", "nodes.count=1", "nodes=[", "a..b=1"])
def test_invalid_change_is_refused(spec: str) -> None:
    with rejects("invalid_change", spec):
        change_settings({"nodes": 4}, parse_changes([spec]))


def test_invalid_value_of_a_change_names_the_option() -> None:
    with rejects("int_parsing", "trainyard:cluster.nodes = 'few'", "in --set."):
        read_stack(Options(stack="local", changes=parse_changes(["nodes=few"])))
