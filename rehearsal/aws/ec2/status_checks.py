"""Status checks: EC2 reports an instance whose operating system does not respond as impaired.

Source: EC2 user guide, "Status checks for Amazon EC2 instances": a check runs every minute. How long an instance does
not respond until it is impaired is not documented.
"""

from typing import Any

from moto.ec2.models.instances import Instance

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.timing import timing


def set_responding(instance: Any, is_responding: bool) -> None:
    """Record whether the operating system of an instance responds from now on."""
    instance.silent_since = None if is_responding else CLOCK.now()


def install() -> None:
    """Replace moto's instance status, which is always `ok`."""
    moto_status = vars(Instance)["instance_status"].fget

    def instance_status(self: Any) -> dict[str, Any]:
        since = self.silent_since
        if self.state != "running" or since is None or CLOCK.now() < since + timing().impaired_seconds:
            status: dict[str, Any] = moto_status(self)
            return status
        return {"Details": [{"Name": "reachability", "Status": "failed"}], "Status": "impaired"}

    extend(Instance, instance_status=property(instance_status), silent_since=None)
