"""Access to single instances, capacity reservations and file systems, whose tags a policy may require.

Source: the resource types of these actions in
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html, list_awssystemsmanager.html and
list_amazonfsx.html
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

from moto.ec2.models import ec2_backends
from moto.fsx.models import fsx_backends

from rehearsal.aws.ec2.reservations import reservations
from rehearsal.aws.iam.policies import AccessRequest
from rehearsal.aws.process import ACCOUNT

# Action -> type of its resource.
TAGGED_RESOURCES: Mapping[str, str] = {
    "ec2:CancelCapacityReservation": "capacity-reservation",
    "ec2:ModifyCapacityReservation": "capacity-reservation",
    "ec2:StopInstances": "instance",
    "ec2:TerminateInstances": "instance",
    "fsx:DeleteFileSystem": "file-system",
    "fsx:UpdateFileSystem": "file-system",
    "ssm:StartSession": "instance",
}


def tagged_requests(action: str, region: str, body: bytes) -> Iterator[AccessRequest]:
    """Yield a request for each resource that the body of a call names, and for the document of a session.

    `action`: key of TAGGED_RESOURCES. A resource that does not exist has no tags.
    """
    kind = TAGGED_RESOURCES[action]
    if action.startswith("ec2:"):
        names = [value for key, (value, *_) in parse_qs(body.decode()).items() if key.startswith(_EC2_PARAMETERS)]
    else:
        parameters = json.loads(body)
        names = [parameters.get("FileSystemId") or parameters.get("Target", "")]
        if document := parameters.get("DocumentName"):
            yield AccessRequest(action, f"arn:aws:ssm:{region}:{ACCOUNT}:document/{document}", tags={})
    for name in names:
        service = "fsx" if kind == "file-system" else "ec2"
        arn = f"arn:aws:{service}:{region}:{ACCOUNT}:{kind}/{name}"
        yield AccessRequest(action, arn, tags=_tags(kind, region, name))


_EC2_PARAMETERS = ("CapacityReservationId", "InstanceId.")


def _tags(kind: str, region: str, name: str) -> dict[str, str]:
    ec2 = ec2_backends[ACCOUNT][region]
    if kind == "file-system":
        file_system = fsx_backends[ACCOUNT][region].file_systems.get(name)
        items = file_system.backend.list_tags_for_resource(file_system.resource_arn) if file_system else []
        return {item["Key"]: item["Value"] for item in items}
    resource: Any = reservations(ec2).get(name)
    if kind == "instance":
        resource = next((each for each in ec2.all_instances() if each.id == name), None)
    return {tag["key"]: tag["value"] for tag in resource.get_tags()} if resource else {}
