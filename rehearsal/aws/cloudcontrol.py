"""Cloud Control's GetResource, which moto does not have, for capacity reservations and KMS keys.

Properties: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-capacityreservation.html
and aws-resource-kms-key.html there.
"""

import json
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends

from rehearsal.aws.active_faults import ApiError
from rehearsal.aws.ec2.reservations import CapacityReservation, find_reservation
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.keys import find_key

SERVICE = "cloudcontrolapi"


def handle_call(call: Call, body: bytes) -> bytes:
    """Return the response body. Raises ApiError, and NotImplementedError for other operations and resource types."""
    request = json.loads(body)
    resource_type, name = request.get("TypeName", "a resource"), request.get("Identifier")
    if call.operation != "GetResource" or resource_type not in _RESOURCE_TYPES:
        raise NotImplementedError(f"{call.operation} of {resource_type}")
    properties = _RESOURCE_TYPES[resource_type](call.region, name)
    if properties is None:
        message = f"Resource of type '{resource_type}' with identifier '{name}' was not found."
        raise ApiError("400 Bad Request", "ResourceNotFoundException", message)
    description = {"Identifier": name, "Properties": json.dumps(properties)}
    return json.dumps({"TypeName": resource_type, "ResourceDescription": description}).encode()


def _key(region: str, name: str) -> dict[str, Any] | None:
    key = find_key(ACCOUNT, region, name)
    if key is None:
        return None
    enabled = key.key_state == "Enabled"
    return {"KeyId": key.id, "Arn": key.arn, "KeyPolicy": json.loads(key.policy), "Enabled": enabled}


def _reservation(region: str, name: str) -> dict[str, Any] | None:
    """Return the properties of a reservation; None if it does not exist or has been cancelled.

    The CloudFormation CLI user guide ("Resource type handler contract") requires NotFound of a resource that was
    deleted, which is for this type a cancellation.
    """
    try:
        reservation = find_reservation(ec2_backends[ACCOUNT][region], name)
    except EC2ClientError:
        return None
    return None if reservation.state == "cancelled" else _properties(reservation)


def _properties(reservation: CapacityReservation) -> dict[str, Any]:
    dates = {
        "StartDate": reservation.start_date,
        "EndDate": reservation.end_date,
        "CreateDate": reservation.create_date,
    }
    return {
        "Id": reservation.id,
        "AvailabilityZone": reservation.availability_zone,
        "AvailabilityZoneId": reservation.availability_zone_id,
        "AvailableInstanceCount": reservation.available_instance_count,
        "CapacityReservationArn": reservation.capacity_reservation_arn,
        "EbsOptimized": reservation.ebs_optimized,
        "EndDateType": reservation.end_date_type,
        "EphemeralStorage": reservation.ephemeral_storage,
        "InstanceCount": reservation.total_instance_count,
        "Interruptible": reservation.interruptible,  # an assumption: the CloudFormation type may lag behind EC2's API
        "InstanceMatchCriteria": reservation.instance_match_criteria,
        "InstancePlatform": reservation.instance_platform,
        "InstanceType": reservation.instance_type,
        "OwnerId": reservation.owner_id,
        "PlacementGroupArn": reservation.placement_group_arn,
        "ReservationType": reservation.reservation_type,
        "State": reservation.state,
        "Tenancy": reservation.tenancy,
        "TotalInstanceCount": reservation.total_instance_count,
        **{key: f"{when:%Y-%m-%dT%H:%M:%SZ}" for key, when in dates.items() if when is not None},
    }


_RESOURCE_TYPES = {"AWS::EC2::CapacityReservation": _reservation, "AWS::KMS::Key": _key}
