"""Nodes that are lost although their group has not removed them."""

import random
from collections.abc import Mapping

import pytest

from tests.conftest import REGION
from tests.connections import FakeConnections
from trainyard.clock import Clock
from trainyard.node.controller.account import Account
from trainyard.node.controller.liveness import (
    EC2_POLL_SECONDS,
    IMPAIRED_SECONDS,
    SILENCE_SECONDS,
    STALL_SECONDS,
    Liveness,
)

NODES = ("i-1", "i-2", "i-3")


class SimulatedClock(Clock):
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Watched:
    """Three nodes of an attempt. `impaired`: what EC2 reports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.connections = SimulatedClock(), FakeConnections()
        account = Account(REGION)
        self.liveness = Liveness(account, self.clock)
        self.impaired: dict[str, str] = {}
        self.attempt = 1
        monkeypatch.setattr(account, "find_impaired_instances", lambda *_: self.impaired)
        self.liveness.silent_nodes(NODES)

    def advance(self, seconds: float, steps: Mapping[str, int | None]) -> None:
        """Advance the clock; then the nodes in `steps` send a heartbeat with this step."""
        self.clock.now += seconds
        for node, step in steps.items():
            self.connections.add_heartbeat(node, "run-1", self.clock.now, step, self.attempt)
        self.liveness.update(self.attempt, self.connections.heartbeats())

    def lost(self, *failed_peers: str) -> list[str]:
        return [each.node for each in self.liveness.find_lost_nodes(NODES, failed_peers)]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_silence_alone_is_no_loss(watched: Watched) -> None:
    for step in range(200):
        watched.advance(5.0, {"i-1": step, "i-2": None})
        assert watched.lost() == []
    assert set(watched.liveness.silent_nodes(NODES)) == {"i-3"}


def test_time_between_two_attempts_is_no_step(watched: Watched) -> None:
    watched.advance(5.0, {"i-1": 1, "i-2": 1, "i-3": 1})
    watched.attempt = 2
    watched.advance(1200.0, {"i-1": 2, "i-2": 2, "i-3": 2})
    watched.advance(STALL_SECONDS + 1, {"i-1": 2, "i-2": 2})
    assert watched.lost() == ["i-3"]


def test_last_step_is_of_the_current_attempt(watched: Watched) -> None:
    watched.advance(5.0, {"i-1": 7, "i-2": 6})
    assert watched.liveness.last_step == 7
    watched.attempt = 2
    watched.advance(5.0, {})
    assert watched.liveness.last_step == 0


def test_silent_node_is_lost_when_ranks_of_others_fail(watched: Watched) -> None:
    watched.advance(SILENCE_SECONDS - 1, {"i-1": 1, "i-2": None})
    assert watched.lost("i-1") == []
    watched.advance(1.0, {"i-1": 1, "i-2": None})
    assert watched.lost("i-1") == ["i-3"]


def test_silent_node_is_lost_when_others_make_no_steps(watched: Watched) -> None:
    watched.advance(5.0, {"i-1": 1, "i-2": None, "i-3": None})
    watched.advance(5.0, {"i-1": 2, "i-2": None})
    watched.advance(STALL_SECONDS, {"i-1": 2, "i-2": None})
    assert watched.lost() == []
    watched.advance(1.0, {"i-1": 2, "i-2": None})
    assert watched.lost() == ["i-3"]


def test_long_steps_are_no_stall(watched: Watched) -> None:
    watched.advance(0.0, {"i-1": 1, "i-2": None, "i-3": None})
    watched.advance(120.0, {"i-1": 2, "i-2": None, "i-3": None})
    watched.advance(200.0, {"i-1": 2, "i-2": None})
    assert watched.lost() == []
    watched.advance(41.0, {"i-1": 2, "i-2": None})
    assert watched.lost() == ["i-3"]


def test_silent_node_is_lost_when_ec2_reports_it_impaired(watched: Watched) -> None:
    watched.impaired = {"i-3": "EC2 reports InstanceStatus impaired"}
    for _ in range(round(IMPAIRED_SECONDS / EC2_POLL_SECONDS) + 2):
        assert watched.lost() == []
        watched.advance(EC2_POLL_SECONDS, {"i-1": None, "i-2": None})
    (lost,) = watched.liveness.find_lost_nodes(NODES, ())
    assert lost.describe() == "i-3 has sent no heartbeat for 90 s, and EC2 reports InstanceStatus impaired"


def test_single_failed_status_check_is_no_second_sign(watched: Watched) -> None:
    """A check is repeated every minute: one that fails is in several responses."""
    for second in range(0, 300, 10):
        watched.impaired = {"i-3": "EC2 reports InstanceStatus impaired"} if second % 120 < 60 else {}
        watched.advance(EC2_POLL_SECONDS, {"i-1": None, "i-2": None})
        assert watched.lost() == []


def test_node_that_ec2_reports_impaired_is_not_lost_while_it_sends_heartbeats(watched: Watched) -> None:
    watched.impaired = {"i-3": "EC2 reports InstanceStatus impaired"}
    watched.advance(SILENCE_SECONDS, dict.fromkeys(NODES))
    assert watched.lost() == []


def test_silence_of_all_nodes_is_that_of_the_head(watched: Watched) -> None:
    watched.advance(600.0, {})
    assert watched.lost("i-1") == []


def test_healthy_nodes_are_never_lost_in_200_hours(watched: Watched) -> None:
    """Heartbeats are late, up to four are lost in a row, and peers fail meanwhile."""
    draw, step = random.Random(0), 0
    last = dict.fromkeys(NODES, 0)
    for number in range(int(200 * 3600 / 5)):
        step += draw.random() < 0.8
        sending = [node for node in NODES if draw.random() < 0.9 or number - last[node] >= 4]
        last.update(dict.fromkeys(sending, number))
        watched.advance(draw.uniform(4.0, 6.0), {node: step if node == "i-1" else None for node in sending})
        assert watched.lost("i-2") == []
