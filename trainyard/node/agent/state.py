"""What an agent knows that an agent started again on the same node must know."""

from pathlib import Path
from typing import Any

from pydantic import Field

from trainyard.base import Contract


class Remembered(Contract):
    """`agent.json` of a run on the node's disk."""

    attempt: int = Field(0, ge=0, description="The last attempt that was begun here.")
    attempt_told: bool = Field(True, description="Whether its end was told.")
    check: int = Field(0, ge=0, description="The last check that was begun here.")
    check_told: bool = Field(True, description="Whether its end was told.")
    network: str | None = Field(None, description="What NCCL calls the network of the OFI plugin, as a check saw it.")


class Memory:
    """The file, and what it says."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.now = Remembered.model_validate_json(file.read_bytes()) if file.exists() else Remembered()

    def put(self, **changes: Any) -> None:
        self.now = Remembered.model_validate(self.now.model_dump() | changes)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(self.now.model_dump_json())
