"""A destroy that is cut, between two deletions or in the middle of any, is repeated and comes to the same."""

import threading
from typing import Any

import boto3
import pytest

from rehearsal.adapter import teardown
from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.teardown import Destroyed, DestroyFailed, destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy

Names = set[tuple[str, str]]


def named(resources: Any) -> Names:
    return {(resource.type, resource.name) for resource in resources}


def whole(run: Deployment) -> tuple[Names, Names]:
    """What an uncut destroy deletes and retains."""
    own = [resource for resource in run.resources.values() if resource.custom]
    kept = [resource for resource in own if resource.retain_on_delete]
    return named(own) - named(kept), named(kept)


def account_of(gone: Destroyed) -> tuple[Names, Names]:
    return named(gone.deleted), named(gone.retained)


def failures_of(run: Deployment) -> set[str]:
    """Why things would not go in one destroy; none when all went."""
    try:
        destroy(run)
    except DestroyFailed as failed:
        return set(failed.failures.values())
    return set()


class Cutter:
    """Breaks the connection after each call that deletes has done its work, once a call and resource."""

    def __init__(self, account: Adapter) -> None:
        self.cut: set[tuple[str, str]] = set()
        self._serving = account.aws._serving
        for service in ("ec2", "s3", "iam", "autoscaling", "fsx"):
            account.aws.client(service).meta.events.register("after-call", self._after)

    def _after(self, model: Any, http_response: Any, **_: Any) -> None:
        if model.name.startswith(("Describe", "Get", "List", "Head")) or http_response.status_code >= 300:
            return
        key = (self._serving.urn, model.name)
        if key not in self.cut:
            self.cut.add(key)
            raise ConnectionError("cut")


def test_a_deletion_cut_after_any_of_its_calls_is_repeated(aws: EmulatedAws, account: Adapter, deploy: Deploy) -> None:
    before = {(each.service, each.kind, each.id) for each in aws.dump()}
    run = deploy("cut", account, "a100-cluster")  # has every type
    boto3.client("s3").put_object(Bucket=run.exports["staging_bucket"], Key="left", Body=b"by a node")
    cutter = Cutter(account)
    failures = {"cut"}
    while failures:
        cuts = len(cutter.cut)
        failures = failures_of(run)
        assert failures <= {"cut"}
        assert not failures or len(cutter.cut) > cuts
    gone = destroy(run)  # once more: nothing is left to do, and the account is the same
    assert account_of(gone) == whole(run)
    left = {(each.service, each.kind, each.id) for each in aws.dump()} - before
    assert {kind for _, kind, _ in left} == {"bucket", "key"}


def test_a_destroy_cut_between_any_two_deletions_is_repeated(
    aws: EmulatedAws, account: Adapter, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C, which finds the main thread waiting for the next deletion to end: cut at each of its waits."""
    run = deploy("between", account, "local")
    cuts = 0

    def cut(*given: Any, **named: Any) -> Any:
        nonlocal cuts
        cuts += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(teardown, "some_done", cut)
    gone = None
    while gone is None:
        try:
            gone = destroy(run)
        except KeyboardInterrupt:
            assert cuts < len(run.resources), "a cut destroy does not get on"
            assert not [one for one in threading.enumerate() if one.name.startswith("destroy")]
    assert cuts > 3
    assert account_of(gone) == whole(run)
