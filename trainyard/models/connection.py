"""Messages between the agents and the controller on their connection, and where agents find the controller."""

from typing import Literal

from pydantic import Field, TypeAdapter

from trainyard.base import StrictModel
from trainyard.models.events import ActivityEvent, AgentEvent, HealthCheckEvent
from trainyard.models.node_health import NodeHealth
from trainyard.models.rank_progress import RankProgress
from trainyard.models.run import Control

AGENT_PORT = 7443  # TCP port of the controller on the head; its security group allows no other


class ControllerEndpoint(StrictModel):
    """`head/controller.json` in the staging bucket: written by each start of the controller.

    Roles of other stacks cannot read the bucket. Token and key are those of one process of the controller.
    """

    address: str = Field(description="Private address of the head.")
    port: int = Field(gt=0, lt=65536, description="TCP port of the WebSocket server, TLS.")
    certificate: str = Field(description="Certificate of the server, PEM; it is its own authority.")
    token: str = Field(min_length=32, description="Bearer token that the agents send.", repr=False)


class Heartbeat(StrictModel):
    """A sign of life of an agent: every HEARTBEAT_SECONDS on the connection, or in S3 while there is none."""

    kind: Literal["heartbeat"] = "heartbeat"
    instance: str = Field(description="EC2 instance id.")
    boot: str = Field(description="Number of this boot of the instance, from 0001.")
    sequence: int = Field(ge=0, description="Nanoseconds since the boot: each report of one boot has a higher number.")
    run: str = Field(description="Run id.")
    attempt: int = Field(ge=0, description="Attempt that runs on the node; 0 if none does.")
    ranks: tuple[RankProgress, ...] = Field((), description="Progress of the ranks on the node that report it.")
    health: NodeHealth = Field(NodeHealth(), description="Health of the node now.")

    @property
    def step(self) -> int | None:
        """Last step of the ranks on the node; None if they report none."""
        return max((rank.step for rank in self.ranks), default=None)


class ControlMessage(StrictModel):
    """The requests of the controller to the agents of one run: those of `control.json`."""

    run: str = Field(description="Run id.")
    control: Control = Field(description="The requests.")


AgentMessage = Heartbeat | AgentEvent | ActivityEvent | HealthCheckEvent
AGENT_MESSAGE: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)
