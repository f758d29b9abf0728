"""Cloud Control's GetResource, which moto has not: of capacity reservations and of KMS keys, which are looked up so.

Properties: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-capacityreservation.html
and aws-resource-kms-key.html there.
"""

import json
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends

from rehearsal.aws.ec2.reservation_actions import find
from rehearsal.aws.ec2.reservations import CapacityReservation
from rehearsal.aws.injection import Refusal
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.keys import find_key

SERVICE = "cloudcontrolapi"


def answer(call: Call, body: bytes) -> bytes:
    """The answer's body. Raises Refusal, and NotImplementedError for what else the service can."""
    asked = json.loads(body)
    kind, name = asked.get("TypeName", "anything"), asked.get("Identifier")
    if call.operation != "GetResource" or kind not in _KINDS:
        raise NotImplementedError(f"{call.operation} of {kind}")
    properties = _KINDS[kind](call.region, name)
    if properties is None:
        message = f"Resource of type '{kind}' with identifier '{name}' was not found."
        raise Refusal("400 Bad Request", "ResourceNotFoundException", message)
    description = {"Identifier": name, "Properties": json.dumps(properties)}
    return json.dumps({"TypeName": kind, "ResourceDescription": description}).encode()


def _key(region: str, name: str) -> dict[str, Any] | None:
    found = find_key(ACCOUNT, region, name)
    if found is None:
        return None
    enabled = found.key_state == "Enabled"
    return {"KeyId": found.id, "Arn": found.arn, "KeyPolicy": json.loads(found.policy), "Enabled": enabled}


def _reservation(region: str, name: str) -> dict[str, Any] | None:
    try:
        return _properties(find(ec2_backends[ACCOUNT][region], name))
    except EC2ClientError:
        return None


def _properties(held: CapacityReservation) -> dict[str, Any]:
    dates = {"StartDate": held.start_date, "EndDate": held.end_date, "CreateDate": held.create_date}
    return {
        "Id": held.id,
        "AvailabilityZone": held.availability_zone,
        "AvailabilityZoneId": held.availability_zone_id,
        "AvailableInstanceCount": held.available_instance_count,
        "CapacityReservationArn": held.capacity_reservation_arn,
        "EbsOptimized": held.ebs_optimized,
        "EndDateType": held.end_date_type,
        "EphemeralStorage": held.ephemeral_storage,
        "InstanceCount": held.total_instance_count,
        "InstanceMatchCriteria": held.instance_match_criteria,
        "InstancePlatform": held.instance_platform,
        "InstanceType": held.instance_type,
        "OwnerId": held.owner_id,
        "ReservationType": held.reservation_type,
        "State": held.state,
        "Tenancy": held.tenancy,
        "TotalInstanceCount": held.total_instance_count,
        **{key: f"{when:%Y-%m-%dT%H:%M:%SZ}" for key, when in dates.items() if when is not None},
    }


_KINDS = {"AWS::EC2::CapacityReservation": _reservation, "AWS::KMS::Key": _key}
