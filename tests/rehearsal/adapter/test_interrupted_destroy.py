"""A destroy that is interrupted, between two deletions or during one, can be repeated with the same result."""

import threading
from typing import Any

import boto3
import pytest

from rehearsal.adapter import teardown
from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.teardown import DestroyError, DestroyResult, destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy

Names = set[tuple[str, str]]


def names_of(resources: Any) -> Names:
    return {(resource.type, resource.name) for resource in resources}


def expected_result(run: Deployment) -> tuple[Names, Names]:
    """Return the resources that an uninterrupted destroy deletes and retains."""
    resources = [resource for resource in run.resources.values() if resource.custom]
    retained = [resource for resource in resources if resource.retain_on_delete]
    return names_of(resources) - names_of(retained), names_of(retained)


def actual_result(destroyed: DestroyResult) -> tuple[Names, Names]:
    return names_of(destroyed.deleted), names_of(destroyed.retained)


def failures_of(run: Deployment) -> set[str]:
    """Destroy once, and return the errors of the failed deletions."""
    try:
        destroy(run)
    except DestroyError as failed:
        return set(failed.failures.values())
    return set()


class ConnectionBreaker:
    """Raises ConnectionError after each deleting API call has succeeded, once per call and resource."""

    def __init__(self, account: EmulatedAccount) -> None:
        self.broken: set[tuple[str, str]] = set()
        self._current = account.aws._current
        for service in ("ec2", "s3", "iam", "autoscaling", "fsx"):
            account.aws.client(service).meta.events.register("after-call", self._after)

    def _after(self, model: Any, http_response: Any, **_: Any) -> None:
        if model.name.startswith(("Describe", "Get", "List", "Head")) or http_response.status_code >= 300:
            return
        key = (self._current.urn, model.name)
        if key not in self.broken:
            self.broken.add(key)
            raise ConnectionError("connection broken")


def test_deletion_interrupted_after_any_api_call_can_be_repeated(
    aws: EmulatedAws, account: EmulatedAccount, deploy: Deploy
) -> None:
    before = {(resource.service, resource.kind, resource.id) for resource in aws.list_resources()}
    run = deploy("interrupted", account, "a100-cluster")  # has every resource type
    boto3.client("s3").put_object(Bucket=run.exports["staging_bucket"], Key="events", Body=b"of a node")
    breaker = ConnectionBreaker(account)
    failures = {"connection broken"}
    while failures:
        count = len(breaker.broken)
        failures = failures_of(run)
        assert failures <= {"connection broken"}
        assert not failures or len(breaker.broken) > count
    destroyed = destroy(run)  # again: nothing remains to be deleted, and the result is the same
    assert actual_result(destroyed) == expected_result(run)
    remaining = {(resource.service, resource.kind, resource.id) for resource in aws.list_resources()} - before
    assert {kind for _, kind, _ in remaining} == {"bucket", "key"}


def test_destroy_interrupted_between_any_two_deletions_can_be_repeated(
    aws: EmulatedAws, account: EmulatedAccount, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupts each wait of the main thread for the next deletion, as Ctrl-C does."""
    run = deploy("between", account, "local")
    interrupts = 0

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        nonlocal interrupts
        interrupts += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(teardown, "wait_for_any", interrupt)
    destroyed = None
    while destroyed is None:
        try:
            destroyed = destroy(run)
        except KeyboardInterrupt:
            assert interrupts < len(run.resources), "an interrupted destroy makes no progress"
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("destroy")]
    assert interrupts > 3
    assert actual_result(destroyed) == expected_result(run)
