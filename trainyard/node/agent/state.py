"""State of an agent that must survive a restart of the agent."""

from pathlib import Path
from typing import Any

from pydantic import Field

from trainyard.base import StrictModel


class AgentState(StrictModel):
    """`agent.json` of a run on the node's disk."""

    attempt: int = Field(0, ge=0, description="The last attempt that was started on this node.")
    attempt_reported: bool = Field(True, description="Whether the end of that attempt was reported.")
    health_check: int = Field(0, ge=0, description="The last health check that was started on this node.")
    health_check_reported: bool = Field(True, description="Whether the end of that health check was reported.")
    network: str | None = Field(
        None, description="NCCL's name for the network of the OFI plugin, from the last health check."
    )


class AgentStateFile:
    """The file with the state, and the state itself."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.state = AgentState.model_validate_json(file.read_bytes()) if file.exists() else AgentState()

    def update(self, **changes: Any) -> None:
        """Change fields of the state and write the file."""
        self.state = AgentState.model_validate(self.state.model_dump() | changes)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(self.state.model_dump_json())
