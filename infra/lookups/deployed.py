"""Look up where the stack is deployed: the outputs of its component StackKey, which the engine stores."""

from dataclasses import dataclass
from typing import Any

import pulumi

from infra.components.key import StackKey
from infra.lookups.errors import lookup_failure

# Function of the engine. The outputs of the stack itself do not exist after a first update that failed in the launch.
READ_OUTPUTS = "pulumi:pulumi:readStackResourceOutputs"


@dataclass(frozen=True, kw_only=True)
class DeployedStack:
    """Account and region of the deployed stack; None if it is not deployed, or if unknown."""

    account: str | None = None
    region: str | None = None


def look_up_deployed() -> DeployedStack:
    """Look up the account and region of this stack. If the state cannot be read, they are not validated: warn."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    try:
        resources = pulumi.runtime.invoke(READ_OUTPUTS, {"stackName": name}).value["outputs"]
    except Exception as error:
        pulumi.log.warn(f"account and region of the deployed stack are not validated: {lookup_failure(error)}")
        return DeployedStack()
    outputs: dict[str, Any] = next(
        (each["outputs"] for each in resources.values() if each["type"] == StackKey.TYPE), {}
    )
    return DeployedStack(account=outputs.get("account"), region=outputs.get("region"))
