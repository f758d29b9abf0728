"""Look up where the stack was deployed by its last update: the outputs that the engine stores."""

from dataclasses import dataclass
from typing import Any

import pulumi

from infra.lookups.errors import lookup_failure

# Function of the engine, which StackReference uses too. A StackReference would add a resource to the stack.
READ_OUTPUTS = "pulumi:pulumi:readStackOutputs"


@dataclass(frozen=True, kw_only=True)
class DeployedStack:
    """Account, region and `storage.kms_key` of the last update; None if no update has succeeded or if unknown."""

    account: str | None = None
    region: str | None = None
    kms_key: str | None = None

    @property
    def outputs(self) -> dict[str, Any]:
        """The values as outputs of the stack. `kms_key` is empty for a stack with its own key."""
        return {"account": self.account, "region": self.region, "kms_key": self.kms_key}


def look_up_deployed() -> DeployedStack:
    """Look up the outputs of this stack. If they cannot be read, the update is not validated against them: warn."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    try:
        outputs = pulumi.runtime.invoke(READ_OUTPUTS, {"name": name}).value["outputs"]
    except Exception as error:
        pulumi.log.warn(f"account, region and key of the deployed stack are not validated: {lookup_failure(error)}")
        return DeployedStack()
    return DeployedStack(**{name: outputs.get(name) for name in DeployedStack().outputs})
