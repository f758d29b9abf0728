"""The description of a kept rehearsal: written by the rehearsal, read by the commands that work on it."""

from pathlib import Path

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.report import BackendName, EngineName

DESCRIPTION = "kept.json"  # in the folder of the rehearsal
LOG = "kept.log"
ENVIRONMENT = "environment"
STACK_FILE = "stack.yaml"  # the current stack file, changed for the rehearsal
RUN_STACK_FILE = "run.yaml"  # the same with the job of the last `trainyard run`


class KeptRehearsal(StrictModel):
    """A rehearsal whose account and nodes stay up until `trainyard rehearse --down`."""

    stack: str = Field(description="Pulumi stack.")
    process: int = Field(description="Id of the process that runs the account and the nodes.")
    endpoint: str = Field(description="URL of the emulated AWS, the value of AWS_ENDPOINT_URL.")
    engine: EngineName = Field(description="Engine that ran the Pulumi program.")
    backend: BackendName = Field(description="Backend that runs the nodes.")
    environment: str = Field(description="File with the environment variables for a shell.")
    ends_at: float = Field(description="Unix time at which the rehearsal ends by itself.")
    errors: tuple[str, ...] = Field((), description="Errors of the rehearsal so far.")
    arguments: tuple[str, ...] = Field(description="Arguments of `python -m rehearsal run` that started it.")
    pulumi_folder: str | None = Field(None, description="Folder of the Pulumi project; null without the Pulumi CLI.")
    pulumi_environment: dict[str, str] = Field(
        default_factory=dict, description="Environment variables for the Pulumi CLI in that folder."
    )


def find_kept_rehearsal(folder: Path) -> KeptRehearsal | None:
    """Return the rehearsal that is kept in a folder; None if there is none, or only that of another user."""
    try:
        return KeptRehearsal.model_validate_json((folder / DESCRIPTION).read_text())
    except (FileNotFoundError, PermissionError):
        return None
