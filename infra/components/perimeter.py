"""The network from which credentials of the stack's nodes can be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi


@dataclass(frozen=True, kw_only=True)
class Perimeter:
    """The stack's VPC, and the public addresses of its NAT gateways."""

    vpc_id: pulumi.Input[str]
    nat_addresses: Sequence[pulumi.Input[str]]

    def deny_outside(self) -> dict[str, Any]:
        """Return the statement that denies every request from another network.

        A request through a VPC endpoint has aws:SourceVpc, every other request has aws:SourceIp. A negated
        condition holds for a key that the request does not have. Requests that a service makes for a node, such as
        those of S3 to KMS, are not affected.
        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
        """
        condition: dict[str, Any] = {
            "StringNotEquals": {"aws:SourceVpc": self.vpc_id},
            "Bool": {"aws:ViaAWSService": "false"},
        }
        if self.nat_addresses:
            networks = [pulumi.Output.concat(address, "/32") for address in self.nat_addresses]
            condition["NotIpAddress"] = {"aws:SourceIp": networks}
        return {"Sid": "OtherNetworks", "Effect": "Deny", "Action": "*", "Resource": "*", "Condition": condition}
