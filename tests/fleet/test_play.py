"""What a node's play is given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import ansible_runner
import pytest

from fleet import play
from fleet.node import Node
from tests.manifests import MANIFEST


@pytest.mark.parametrize(("role", "group"), [("worker", "workers"), ("head", None)])
def test_a_worker_is_configured_as_its_own_group_says(
    role: Literal["worker", "head"], group: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def run(**asked: Any) -> SimpleNamespace:
        given.update(asked["extravars"])
        return SimpleNamespace(rc=0)

    monkeypatch.setattr(ansible_runner, "run", run)
    monkeypatch.setattr(play, "BASE", tmp_path)
    node = Node(
        role=role,
        group=group,
        instance="i-1",
        address="127.0.0.1",
        boot="0001",
        region="us-east-1",
        manifest_uri="",
        bundle="/b",
    )
    assert play.run_playbook(node, MANIFEST, f"{role}.yml", lambda _: True) == 0
    assert given.get("group", {}).get("name") == group
