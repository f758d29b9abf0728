"""Decides which nodes are lost although their group has not removed them: silent nodes with a second sign.

Silence alone is not enough: the agent may hang, or its connection to the head may fail, while the job continues.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.clock import Clock
from trainyard.node.controller.account import Account
from trainyard.node.controller.agent_server import ReceivedHeartbeat

# Six heartbeats. An agent that loses its connection writes its first heartbeat to S3 within 15 s.
SILENCE_SECONDS = 30.0
# Other nodes count as waiting for a silent node after this time without a step, or after twice the time of the longest
# step so far if that is longer.
STALL_SECONDS = 30.0
EC2_POLL_SECONDS = 10.0
# EC2 repeats a status check every minute (EC2 user guide, "Status checks for Amazon EC2 instances"): a single failed
# check is no sign.
IMPAIRED_SECONDS = 70.0
LOG = logging.getLogger("controller")


@dataclass(frozen=True)
class LostNode:
    """A node that is lost. `silent_seconds`: without a heartbeat. `second_sign`: what confirms it."""

    node: str
    silent_seconds: float
    second_sign: str

    def describe(self) -> str:
        """Return the evidence in one sentence."""
        return f"{self.node} has sent no heartbeat for {self.silent_seconds:.0f} s, and {self.second_sign}"


class Liveness:
    """Tracks the heartbeats of the nodes of one run. A restart of the controller resets the times of their silence."""

    def __init__(self, account: Account, clock: Clock) -> None:
        self._account, self._clock = account, clock
        self._received: dict[str, ReceivedHeartbeat] = {}
        self._expected_since: dict[str, float] = {}
        self._attempt = 0
        self._progress: dict[str, tuple[int, float]] = {}  # node -> its last step, and when it was first received
        self._longest_step = 0.0
        self._impaired: dict[str, str] = {}  # by the last response of EC2
        self._impaired_since: dict[str, float] = {}  # monotonic
        self._described_at = 0.0

    def update(self, attempt: int, heartbeats: Mapping[str, ReceivedHeartbeat]) -> None:
        """Record the newest heartbeat of each node. `attempt`: the current one; the time between two is no step."""
        if attempt != self._attempt:
            self._attempt, self._progress = attempt, {}
        self._received = dict(heartbeats)
        for node, received in heartbeats.items():
            step, known = received.heartbeat.step, self._progress.get(node)
            is_current = received.heartbeat.attempt == attempt
            if step is None or not is_current or (known is not None and known[0] == step):
                continue
            if known is not None and step > known[0]:
                self._longest_step = max(self._longest_step, (received.received_at - known[1]) / (step - known[0]))
            self._progress[node] = (step, received.received_at)

    @property
    def last_step(self) -> int:
        """The last step of the current attempt that a node has reported; 0 without one."""
        return max((step for step, _ in self._progress.values()), default=0)

    def silent_nodes(self, nodes: Collection[str]) -> dict[str, float]:
        """Return node -> seconds without a heartbeat, for those of `nodes` that are silent.

        Nodes are expected to send heartbeats from the first call that names them.
        """
        return {node: each for node, each in self._silence(nodes).items() if each >= SILENCE_SECONDS}

    def _silence(self, nodes: Collection[str]) -> dict[str, float]:
        """Return node -> seconds since its last heartbeat."""
        now = self._clock.monotonic()
        for node in nodes:
            self._expected_since.setdefault(node, now)
        return {node: now - self._last_sign(node) for node in nodes}

    def may_become_silent(self, nodes: Collection[str], since: float) -> bool:
        """Return whether one of the nodes has sent no heartbeat since then, monotonic time, but is not silent yet."""
        now = self._clock.monotonic()
        return any(self._last_sign(node) < since and now - self._last_sign(node) < SILENCE_SECONDS for node in nodes)

    def find_lost_nodes(self, nodes: Collection[str], failed_peers: Collection[str]) -> list[LostNode]:
        """Return the lost nodes among those of an attempt. `failed_peers`: nodes whose ranks have failed in it.

        A second sign is that EC2 reports the instance as impaired or not running for IMPAIRED_SECONDS, that ranks of
        other nodes have failed, or that other nodes make no steps. If all nodes are silent, only EC2 confirms it.
        """
        silence = self._silence(nodes)
        if soon_silent := [node for node, each in silence.items() if each >= SILENCE_SECONDS - EC2_POLL_SECONDS]:
            self._describe(soon_silent)
        silent = {node: each for node, each in silence.items() if each >= SILENCE_SECONDS}
        if not silent:
            return []
        others = [node for node in nodes if node not in silent]
        waiting = self._describe_waiting_peers(others, failed_peers)
        now = self._clock.monotonic()
        confirmed = {node: now >= since + IMPAIRED_SECONDS for node, since in self._impaired_since.items()}
        signs = {node: self._impaired[node] if confirmed.get(node) else waiting for node in silent}
        return [LostNode(node, silent[node], sign) for node, sign in sorted(signs.items()) if sign]

    def _last_sign(self, node: str) -> float:
        received = self._received.get(node)
        return max(self._expected_since[node], received.received_at if received else 0.0)

    def _describe(self, nodes: Collection[str]) -> None:
        """Read the state of silent nodes from EC2. If EC2 does not respond, the last known state is used."""
        now = self._clock.monotonic()
        if now < self._described_at + EC2_POLL_SECONDS:
            return
        if now > self._described_at + 3 * EC2_POLL_SECONDS:
            self._impaired_since = {}  # by responses of an earlier silence
        self._described_at = now
        try:
            self._impaired = self._account.find_impaired_instances(nodes)
            self._impaired_since = {node: self._impaired_since.get(node, now) for node in self._impaired}
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the state of %s cannot be read: %s", ", ".join(nodes), error)

    def _describe_waiting_peers(self, others: Collection[str], failed_peers: Collection[str]) -> str | None:
        """Return how nodes that are not silent wait for those that are; None if they do not."""
        if failed := sorted(set(others) & set(failed_peers)):
            return f"ranks of {', '.join(failed)} failed"
        now, limit = self._clock.monotonic(), max(STALL_SECONDS, 2 * self._longest_step)
        progress = {node: self._progress[node] for node in others if node in self._progress}
        if progress and all(now - received_at > limit for _, received_at in progress.values()):
            step = max(step for step, _ in progress.values())
            return f"{', '.join(sorted(progress))} made no step after step {step}"
        return None
