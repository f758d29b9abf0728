"""Nodes that will not become ready."""

from collections.abc import Collection
from typing import Any

from botocore.exceptions import EndpointConnectionError

from tests.clusters import event_fields
from trainyard.models.events import PlaybookEvent
from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PLAYBOOK_RETRY_SECONDS
from trainyard.node.controller.startup_watch import IMPAIRED_SECONDS, StartupFailure, StartupWatch


def playbook_event(node: str, status: str, after: float = 0.0) -> PlaybookEvent:
    fields: dict[str, Any] = {**event_fields(node, "worker", after), "status": status, "message": "no mirror"}
    return PlaybookEvent.model_validate(fields)


def nothing_impaired(nodes: Collection[str]) -> dict[str, str]:
    return {}


def test_node_without_events_is_a_failure_some_time_after_it_was_seen() -> None:
    watch, timeout = StartupWatch(nothing_impaired), NO_EVENTS_TIMEOUT_SECONDS
    watch.update(playbook_event("i-1", "started"))
    assert watch.find_failures(["i-1", "i-2"], 1000.0) == []
    assert watch.find_failures(["i-1", "i-2"], 1000.0 + timeout) == []
    failure = StartupFailure("i-2", "no events received within 15 minutes", is_instance_fault=True)
    assert watch.find_failures(["i-1", "i-2"], 1001.0 + timeout) == [failure]


def test_replacement_has_the_same_time() -> None:
    watch = StartupWatch(nothing_impaired)
    watch.find_failures(["i-1"], 1000.0)
    assert watch.find_failures(["i-2"], 1001.0 + NO_EVENTS_TIMEOUT_SECONDS) == []


def test_playbook_that_fails_again_and_again_is_a_failure() -> None:
    watch = StartupWatch(nothing_impaired)
    watch.update(playbook_event("i-1", "failed"))
    assert watch.find_failures(["i-1"], 1000.0) == []
    watch.update(playbook_event("i-1", "failed", PLAYBOOK_RETRY_SECONDS + 1))
    (failure,) = watch.find_failures(["i-1"], 1000.0)
    assert failure.describe() == "node i-1 could not be configured: no mirror"


def test_failure_of_a_removed_node_does_not_count() -> None:
    watch = StartupWatch(nothing_impaired)
    for after in (0.0, PLAYBOOK_RETRY_SECONDS + 1):
        watch.update(playbook_event("i-1", "failed", after))
    assert watch.find_failures(["i-2"], 1000.0) == []


def test_node_that_ec2_reports_as_impaired_twice_is_a_failure() -> None:
    impaired = {"i-1": "EC2 reports InstanceStatus impaired"}
    watch = StartupWatch(lambda nodes: {node: impaired[node] for node in nodes if node in impaired})
    watch.update(playbook_event("i-2", "started"))
    assert watch.find_failures(["i-1", "i-2"], 1000.0) == []
    (failure,) = watch.find_failures(["i-1", "i-2"], 1000.0 + IMPAIRED_SECONDS)
    assert failure == StartupFailure(
        "i-1", "no events received, and EC2 reports InstanceStatus impaired", is_instance_fault=True
    )


def test_impairment_that_ends_is_no_failure() -> None:
    impaired = {"i-1": "EC2 reports InstanceStatus impaired"}
    watch = StartupWatch(lambda _: impaired)
    watch.find_failures(["i-1"], 1000.0)
    impaired = {}
    assert watch.find_failures(["i-1"], 1000.0 + IMPAIRED_SECONDS) == []


def test_one_response_does_not_make_a_node_impaired() -> None:
    responses: list[dict[str, str]] = [{"i-1": "EC2 reports InstanceStatus impaired"}]

    def respond(_: Collection[str]) -> dict[str, str]:
        if not responses:
            raise EndpointConnectionError(endpoint_url="ec2")
        return responses.pop()

    watch = StartupWatch(respond)
    watch.find_failures(["i-1"], 1000.0)
    assert watch.find_failures(["i-1"], 1000.0 + 2 * IMPAIRED_SECONDS) == []
