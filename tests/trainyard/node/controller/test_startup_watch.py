"""The controller ends a run before its first attempt when a node will not become ready."""

from typing import Any

from tests.clusters import event_fields
from trainyard.models.events import PlaybookEvent
from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PLAYBOOK_RETRY_SECONDS
from trainyard.node.controller.startup_watch import CONTROLLER_TIMEOUT_FACTOR, StartupWatch


def playbook_event(node: str, status: str, after: float = 0.0) -> PlaybookEvent:
    fields: dict[str, Any] = {**event_fields(node, "worker", after), "status": status, "message": "no mirror"}
    return PlaybookEvent.model_validate(fields)


def test_node_without_events_is_a_failure_some_time_after_it_was_seen() -> None:
    watch, timeout = StartupWatch(), CONTROLLER_TIMEOUT_FACTOR * NO_EVENTS_TIMEOUT_SECONDS
    watch.update(playbook_event("i-1", "started"))
    assert watch.find_failure(["i-1", "i-2"], 1000.0) is None
    assert watch.find_failure(["i-1", "i-2"], 1000.0 + timeout) is None
    assert watch.find_failure(["i-1", "i-2"], 1001.0 + timeout) == "no events received from i-2 within 22.5 minutes"


def test_replacement_has_the_same_time() -> None:
    watch, timeout = StartupWatch(), CONTROLLER_TIMEOUT_FACTOR * NO_EVENTS_TIMEOUT_SECONDS
    watch.find_failure(["i-1"], 1000.0)
    assert watch.find_failure(["i-2"], 1001.0 + timeout) is None


def test_playbook_that_fails_again_and_again_is_a_failure() -> None:
    watch = StartupWatch()
    watch.update(playbook_event("i-1", "failed"))
    watch.update(playbook_event("i-1", "failed", PLAYBOOK_RETRY_SECONDS))
    assert watch.find_failure(["i-1"], 1000.0) is None
    watch.update(playbook_event("i-1", "failed", CONTROLLER_TIMEOUT_FACTOR * PLAYBOOK_RETRY_SECONDS))
    assert watch.find_failure(["i-1"], 1000.0) == "node i-1 could not be configured: no mirror"


def test_failure_of_a_removed_node_does_not_count() -> None:
    watch = StartupWatch()
    for after in (0.0, CONTROLLER_TIMEOUT_FACTOR * PLAYBOOK_RETRY_SECONDS):
        watch.update(playbook_event("i-1", "failed", after))
    assert watch.find_failure(["i-2"], 1000.0) is None
