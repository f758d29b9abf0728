"""The playbook runs again for a new container image of an unchanged manifest."""

import subprocess
from pathlib import Path

import pytest

from tests.manifests import MANIFEST, record_of
from tests.polling import eventually
from trainyard.models.run import RunRecord
from trainyard.node import refresh as refresh_module
from trainyard.node.refresh import UNIT, pull_container_image

# It records its start, and runs until the file `proceed` exists.
PROGRAM = "#!/bin/sh\necho start >> {folder}/starts\nwhile [ ! -e {folder}/proceed ]; do sleep 0.05; done\n"
UNIT_TEXT = "[Unit]\nDescription=d\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={program}\n"


class Playbook:
    """A program that replaces the playbook in the unit of the node, and has been started once."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        program = folder / "program"
        program.write_text(PROGRAM.format(folder=folder))
        program.chmod(0o755)
        unit = root / "etc/systemd/system" / UNIT
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(UNIT_TEXT.format(program=program))
        self.systemctl("daemon-reload")
        self.systemctl("restart", "--no-block", UNIT)
        self.wait_for_starts(1)

    def systemctl(self, *arguments: str) -> str:
        return subprocess.run(["systemctl", *arguments], capture_output=True, text=True).stdout.strip()

    def starts(self) -> int:
        file = self.folder / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for_starts(self, count: int) -> None:
        eventually(lambda: self.starts() == count, f"start {count}")

    def complete(self) -> None:
        (self.folder / "proceed").touch()
        eventually(lambda: self.systemctl("is-active", UNIT) == "active", "the end of the playbook")


@pytest.fixture
def playbook(booted: Path, systemd: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Playbook:
    monkeypatch.setattr(refresh_module, "BASE", tmp_path)
    monkeypatch.setattr(refresh_module, "read_manifest", lambda: MANIFEST)
    return Playbook(booted, tmp_path)


def run_of(node_digest: str) -> RunRecord:
    return record_of(MANIFEST, MANIFEST.job, 1).model_copy(update={"node_digest": node_digest})


def test_completed_playbook_runs_again(playbook: Playbook) -> None:
    playbook.complete()
    pull_container_image(run_of(MANIFEST.node_digest()))
    playbook.wait_for_starts(2)


def test_running_playbook_is_not_interrupted(playbook: Playbook) -> None:
    pull_container_image(run_of(MANIFEST.node_digest()))
    playbook.complete()
    assert playbook.starts() == 1


def test_playbook_does_not_run_again_for_a_run_of_another_manifest(playbook: Playbook) -> None:
    playbook.complete()
    pull_container_image(run_of("0" * 64))
    assert playbook.systemctl("is-active", UNIT) == "active"
    assert playbook.starts() == 1
