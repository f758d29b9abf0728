"""Cloud Control's GetResource, which moto has not: of a capacity reservation, the one kind that is looked up so.

Properties: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-capacityreservation.html
"""

import json
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends

from rehearsal.aws.ec2.reservation_calls import find
from rehearsal.aws.ec2.reservations import CapacityReservation
from rehearsal.aws.injection import Refusal
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT

SERVICE = "cloudcontrolapi"
_KIND = "AWS::EC2::CapacityReservation"


def answer(call: Call, body: bytes) -> bytes:
    """The answer's body. Raises Refusal, and NotImplementedError for what else the service can."""
    asked = json.loads(body)
    if call.operation != "GetResource" or asked["TypeName"] != _KIND:
        raise NotImplementedError(f"{call.operation} of {asked.get('TypeName', 'anything')}")
    name, backend = asked["Identifier"], ec2_backends[ACCOUNT][call.region]
    try:
        held = find(backend, name)
    except EC2ClientError:
        message = f"Resource of type '{_KIND}' with identifier '{name}' was not found."
        raise Refusal("400 Bad Request", "ResourceNotFoundException", message) from None
    description = {"Identifier": name, "Properties": json.dumps(_properties(held))}
    return json.dumps({"TypeName": _KIND, "ResourceDescription": description}).encode()


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
