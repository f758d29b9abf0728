"""Drain of a node: causes in the metadata service, and completion of the lifecycle action."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.metadata import InstanceMetadata, MetadataServer
from tests import clusters
from tests.conftest import REGION
from tests.manifests import MANIFEST
from trainyard.models.manifest import Manifest
from trainyard.node import bootstrap
from trainyard.node.agent.drain import DRAIN_SECONDS, INTERRUPTION_SECONDS, Drain
from trainyard.node.identity import find_group

NODE = clusters.worker_identity(REGION, "", group="spot")
NOTICE = {"spot": {"instance-action": '{"action": "terminate", "time": "2026-01-31T18:02:00Z"}'}}
REBALANCE = {"events": {"recommendations": {"rebalance": '{"noticeTime": "2026-01-31T18:00:00Z"}'}}}


class Service(InstanceMetadata):
    """Metadata service of the node, with additional pages."""

    def __init__(self, instance: dict[str, Any]) -> None:
        super().__init__(lambda: instance, lambda role: {})
        self.instance, self.pages = instance, dict[str, Any]()

    def _tree(self) -> dict[str, Any]:
        tree = super()._tree()
        tree["meta-data"] |= self.pages
        return tree


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service(
        {
            "id": "i-1",
            "zone": "us-east-1a",
            "private_ip": "127.0.0.1",
            "instance_type": "g5.xlarge",
            "image": "ami-1",
            "tags": {},
            "user_data": "",
            "autoscaling_group": "workers-1",
            "lifecycle_state": "InService",
            "interrupted_time": None,
            "role_name": None,
        }
    )
    server = MetadataServer(service, socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(bootstrap, "METADATA", server.endpoint)
    yield service
    server.close()


@pytest.fixture
def create_drain(account: EmulatedAws) -> Callable[..., Drain]:
    def create(*, market: str = "spot") -> Drain:
        return Drain(NODE, MANIFEST.groups[0].model_copy(update={"market": market}))

    return create


def test_node_in_service_is_not_drained(service: Service, create_drain: Callable[..., Drain]) -> None:
    assert create_drain().cause() is None


def test_target_lifecycle_state_drains_the_node(service: Service, create_drain: Callable[..., Drain]) -> None:
    service.instance["lifecycle_state"] = "Terminated"
    drain = create_drain()
    assert (drain.cause(), drain.checkpoint_timeout_seconds()) == ("terminating", DRAIN_SECONDS)


@pytest.mark.parametrize("market", ["spot", "interruptible-capacity-reservation"])
def test_notice_drains_the_node_within_two_minutes(
    service: Service, create_drain: Callable[..., Drain], market: str
) -> None:
    service.pages = NOTICE
    drain = create_drain(market=market)
    assert (drain.cause(), drain.checkpoint_timeout_seconds()) == ("interrupted", INTERRUPTION_SECONDS)


@pytest.mark.parametrize("market", ["on-demand", "capacity-block"])
def test_other_nodes_read_no_notices(service: Service, create_drain: Callable[..., Drain], market: str) -> None:
    service.pages = NOTICE
    assert create_drain(market=market).cause() is None


def test_rebalance_recommendation_is_only_logged(
    service: Service, create_drain: Callable[..., Drain], caplog: pytest.LogCaptureFixture
) -> None:
    service.pages = REBALANCE
    drain = create_drain()
    assert (drain.cause(), drain.cause()) == (None, None)
    assert caplog.text.count("rebalance") == 1


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the node runs."""
    run: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run.append(command))
    return run


def test_a_node_that_its_group_terminates_powers_off(
    service: Service, create_drain: Callable[..., Drain], commands: list[list[str]]
) -> None:
    create_drain().power_off("terminating")
    assert commands == [["systemctl", "poweroff"]]


def test_an_interrupted_node_stays_until_ec2_terminates_it(
    service: Service, create_drain: Callable[..., Drain], commands: list[list[str]]
) -> None:
    service.pages = NOTICE
    drain = create_drain()
    drain.record_heartbeat()  # it waits at no lifecycle hook
    drain.power_off("interrupted")
    assert commands == []


def two_groups() -> Manifest:
    base = MANIFEST.groups[0]
    spot = base.model_copy(update={"name": "spot", "autoscaling_group": "spot-1", "market": "spot"})
    return MANIFEST.model_copy(update={"groups": (base, spot)})


def test_find_group_returns_the_group_of_the_node() -> None:
    assert find_group(NODE, two_groups()).autoscaling_group == "spot-1"


def test_find_group_rejects_an_unknown_group() -> None:
    node = NODE.model_copy(update={"group": "other"})
    with pytest.raises(LookupError, match="the manifest does not contain other, the worker group of this node"):
        find_group(node, two_groups())
