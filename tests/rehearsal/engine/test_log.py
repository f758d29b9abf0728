"""Reading the CLI's event log while the CLI writes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.deployment import Event
from rehearsal.engine.log import EngineLog

URN = "urn:pulumi:s::trainyard::trainyard:infra:Network$aws:ec2/vpc:Vpc::vpc"
LAUNCH = "urn:pulumi:s::trainyard::trainyard:infra:Launch$command:local:Command::launch"


def step(kind: str, op: str, **state: Any) -> dict[str, Any]:
    new = {"custom": True, "type": "aws:ec2/vpc:Vpc", **state}
    return {kind: {"metadata": {"op": op, "urn": URN, "type": new["type"], "old": None, "new": new}}}


def diagnostic(severity: str, message: str, urn: str = "") -> dict[str, Any]:
    return {"diagnosticEvent": {"severity": severity, "message": message, "urn": urn}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "up.jsonl"


def read(path: Path, *entries: dict[str, Any]) -> tuple[EngineLog, list[Event]]:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    log = EngineLog(path)
    return log, list(log.events())


@pytest.mark.parametrize(
    ("op", "kinds"),
    [
        ("create", ["creating", "created"]),
        ("create-replacement", ["creating", "created"]),
        ("update", ["updating", "updated"]),
        ("delete", ["deleting", "deleted"]),
        ("delete-replaced", ["deleting", "deleted"]),
        ("import", ["imported"]),
        ("same", []),
    ],
)
def test_operation_has_an_event_at_start_and_end(path: Path, op: str, kinds: list[str]) -> None:
    _, events = read(path, step("resourcePreEvent", op), step("resOutputsEvent", op))
    assert [(event.kind, event.type, event.name) for event in events] == [
        (kind, "aws:ec2/vpc:Vpc", "vpc") for kind in kinds
    ]


def test_components_have_no_events(path: Path) -> None:
    assert read(path, step("resOutputsEvent", "create", custom=False))[1] == []


def test_providers_have_no_events(path: Path) -> None:
    assert read(path, step("resOutputsEvent", "create", type="pulumi:providers:aws"))[1] == []


def test_deletion_of_a_retained_resource_has_a_retained_event(path: Path) -> None:
    steps = [step(kind, "delete", retainOnDelete=True) for kind in ("resourcePreEvent", "resOutputsEvent")]
    assert [event.kind for event in read(path, *steps)[1]] == ["retained"]


def test_planned_resources_are_created_or_imported(path: Path) -> None:
    assert read(path, step("resourcePreEvent", "create"))[0].planned == {URN: "aws:ec2/vpc:Vpc"}
    assert read(path, step("resourcePreEvent", "same"))[0].planned == {}


def test_output_of_a_command_excludes_json(path: Path) -> None:
    message = 'nodes  2 of 2 launched\njob  started{"run":"r-1"}\n{"run":"r-1"}\n'
    _, events = read(path, diagnostic("info", message, LAUNCH))
    assert [(event.kind, event.text) for event in events] == [
        ("output", "nodes  2 of 2 launched"),
        ("output", "job  started"),
    ]


def test_error_names_the_resource_and_is_recorded(path: Path) -> None:
    log, events = read(path, diagnostic("error", "exit status 1", LAUNCH), diagnostic("error", "update failed"))
    assert [event.text for event in events] == ["command:local:Command launch: exit status 1"]
    assert log.errors == [(LAUNCH, "exit status 1")]


def test_warning_is_not_an_error(path: Path) -> None:
    log, events = read(path, diagnostic("warning", "using pulumi-resource-command from $PATH"))
    assert (log.errors, events) == ([], [])


def test_incomplete_line_is_read_later(path: Path) -> None:
    line = json.dumps(step("resOutputsEvent", "create")) + "\n"
    path.write_text(line[:20])
    log = EngineLog(path)
    assert list(log.events()) == []
    path.write_text(line)
    assert [event.kind for event in log.events()] == ["created"]
    assert list(log.events()) == []


def test_missing_log_has_no_events(tmp_path: Path) -> None:
    assert list(EngineLog(tmp_path / "none").events()) == []
