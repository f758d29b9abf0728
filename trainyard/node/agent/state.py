"""State of an agent that must survive a restart of the agent."""

from pathlib import Path
from typing import Any

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.run import RunRecord
from trainyard.node.identity import BASE

AGENT_STATE = "agent.json"  # below runs/<run>/ on the node's disk


class AgentState(StrictModel):
    """`agent.json` of a run on the node's disk."""

    attempt: int = Field(0, ge=0, description="The last attempt that was started on this node.")
    attempt_reported: bool = Field(True, description="Whether the end of that attempt was reported.")
    boot: str = Field("", description="Number of the boot in which that attempt was started.")
    first_rank: int = Field(0, ge=0, description="First rank of this node in that attempt.")
    up_reported: bool = Field(False, description="Whether it was reported that the ranks of that attempt are up.")
    checkpoint_requests: int = Field(
        0, ge=0, description="Requests for a checkpoint that were fulfilled, or came before that attempt."
    )
    killed_ranks: tuple[int, ...] = Field((), description="Local ranks of that attempt that the agent has killed.")
    repair: int = Field(0, ge=0, description="Number of the last repair that was started on this node.")
    health_check: int = Field(0, ge=0, description="The last health check that was started on this node.")
    health_check_reported: bool = Field(True, description="Whether the end of that health check was reported.")
    credentials_port: int = Field(0, ge=0, description="Port of the endpoint for the job's credentials; 0: none yet.")
    credentials_token: str | None = Field(None, description="Token of that endpoint.")
    network: str | None = Field(
        None, description="NCCL's name for the network of the OFI plugin, from the last health check."
    )

    @property
    def is_working(self) -> bool:
        """Whether an attempt or a health check runs."""
        return not (self.attempt_reported and self.health_check_reported)


def read_state(file: Path) -> AgentState:
    """Return the state in a file; the initial state if it does not exist."""
    return AgentState.model_validate_json(file.read_bytes()) if file.exists() else AgentState()


class AgentStateFile:
    """The file with the state, and the state itself."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.state = read_state(file)

    def update(self, **changes: Any) -> None:
        """Change fields of the state and replace the file, so that it is complete at any time."""
        self.state = AgentState.model_validate(self.state.model_dump() | changes)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".new")
        temporary.touch(0o600)  # the state contains a secret
        temporary.write_text(self.state.model_dump_json())
        temporary.rename(self._file)


def open_state_file(run: RunRecord) -> AgentStateFile:
    """Return the state file of a run. The network of the health check is that of the previous run on this node."""
    runs = BASE / "runs"
    file = AgentStateFile(runs / run.run / AGENT_STATE)
    if run.previous_run is not None and file.state.network is None:
        file.update(network=read_state(runs / run.previous_run / AGENT_STATE).network)
    return file
