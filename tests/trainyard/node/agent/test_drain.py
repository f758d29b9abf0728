"""What wants a node to go, as the metadata service says, and its last word to Auto Scaling."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.metadata import Metadata, MetadataServer
from tests import clusters
from tests.conftest import REGION
from tests.manifests import MANIFEST
from trainyard.models.manifest import Manifest
from trainyard.node import bootstrap
from trainyard.node.agent.drain import INTERRUPTED_SECONDS, LEAVE_SECONDS, Departure
from trainyard.node.identity import own_group

NODE = clusters.worker(REGION, "", group="spot")
NOTICE = {"spot": {"instance-action": '{"action": "terminate", "time": "2026-01-31T18:02:00Z"}'}}
REBALANCE = {"events": {"recommendations": {"rebalance": '{"noticeTime": "2026-01-31T18:00:00Z"}'}}}


class Service(Metadata):
    """The node's metadata service, with pages put beside its own."""

    def __init__(self, truth: dict[str, Any]) -> None:
        super().__init__(lambda: truth, lambda role: {})
        self.truth, self.more = truth, dict[str, Any]()

    def _tree(self) -> dict[str, Any]:
        tree = super()._tree()
        tree["meta-data"] |= self.more
        return tree


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service(
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
    server = MetadataServer(made, socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(bootstrap, "METADATA", server.endpoint)
    yield made
    server.close()


@pytest.fixture
def departure(account: EmulatedAws) -> Callable[..., Departure]:
    def make(*, spot: bool = True) -> Departure:
        return Departure(NODE, MANIFEST.groups[0].model_copy(update={"market": "spot" if spot else "on-demand"}))

    return make


def test_a_node_in_service_stays(service: Service, departure: Callable[..., Departure]) -> None:
    assert departure().cause() is None


def test_a_target_state_sends_a_node_away(service: Service, departure: Callable[..., Departure]) -> None:
    service.truth["lifecycle_state"] = "Terminated"
    made = departure()
    assert (made.cause(), made.seconds()) == ("terminating", LEAVE_SECONDS)


def test_a_spot_notice_sends_a_node_away_within_its_two_minutes(
    service: Service, departure: Callable[..., Departure]
) -> None:
    service.more = NOTICE
    made = departure()
    assert (made.cause(), made.seconds()) == ("interrupted", INTERRUPTED_SECONDS)


def test_only_a_spot_group_asks_for_notices(service: Service, departure: Callable[..., Departure]) -> None:
    service.more = NOTICE
    assert departure(spot=False).cause() is None


def test_a_rebalance_recommendation_is_only_said(
    service: Service, departure: Callable[..., Departure], capsys: pytest.CaptureFixture[str]
) -> None:
    service.more = REBALANCE
    made = departure()
    assert (made.cause(), made.cause()) == (None, None)
    assert capsys.readouterr().out.count("rebalance") == 1


def test_an_interrupted_node_is_held_by_no_hook(
    account: EmulatedAws, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last word to Auto Scaling is refused, and the node ends all the same."""
    cluster = clusters.build(REGION)
    (node,) = cluster.launch(1)
    service.more = NOTICE
    group = cluster.manifest.groups[0].model_copy(update={"market": "spot"})
    made = Departure(NODE.model_copy(update={"instance": node}), group)
    made.stay_on()
    made.complete()
    assert "No active Lifecycle Action found" in capsys.readouterr().out


def two_groups() -> Manifest:
    base = MANIFEST.groups[0]
    spot = base.model_copy(update={"name": "spot", "autoscaling_group": "spot-1", "market": "spot"})
    return MANIFEST.model_copy(update={"groups": (base, spot)})


def test_a_node_knows_its_own_group() -> None:
    assert own_group(NODE, two_groups()).autoscaling_group == "spot-1"


def test_a_group_that_the_manifest_does_not_name_is_told() -> None:
    lost = NODE.model_copy(update={"group": "other"})
    with pytest.raises(LookupError, match="in the group other, which the manifest does not name"):
        own_group(lost, two_groups())
