"""Look-ups of what a stack says exists on EC2's side: reservation, image, network; and of the quotas that bound it."""

from collections.abc import Mapping
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from rehearsal.adapter import lookups_network
from rehearsal.adapter.errors import Refused
from rehearsal.adapter.handler import Keys, known
from rehearsal.adapter.lookup_answers import Answer, filters_of, no_image, no_resource
from rehearsal.adapter.session import Aws


def _resource(aws: Aws, given: Mapping[str, Any]) -> Answer:
    try:
        answer = aws.client("cloudcontrol").get_resource(TypeName=given["typeName"], Identifier=given["identifier"])
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            raise no_resource(given["typeName"], given["identifier"]) from error
        raise
    found = answer["ResourceDescription"]
    return {"id": found["Identifier"], "properties": found["Properties"], **given}


def _quota(aws: Aws, given: Mapping[str, Any]) -> Answer:
    """The applied value; where none was ever applied, AWS's default."""
    quotas, named = aws.client("service-quotas"), {"ServiceCode": given["serviceCode"], "QuotaCode": given["quotaCode"]}
    default = quotas.get_aws_default_service_quota(**named)["Quota"]
    applied = default
    try:
        applied = quotas.get_service_quota(**named)["Quota"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchResourceException":
            raise
    return {
        "id": default["QuotaArn"],
        "arn": applied["QuotaArn"],
        "adjustable": default["Adjustable"],
        "defaultValue": default["Value"],
        "globalQuota": default["GlobalQuota"],
        "quotaName": default["QuotaName"],
        "serviceName": default["ServiceName"],
        "usageMetrics": [],
        "value": applied["Value"],
        **given,
    }


def _image(aws: Aws, given: Mapping[str, Any]) -> Answer:
    wanted = [{"Name": name, "Values": values} for name, values in filters_of(given)]
    owners = {"Owners": given["owners"]} if given.get("owners") else {}
    images = aws.client("ec2").describe_images(Filters=wanted, **owners)["Images"]
    if not images:
        raise no_image()
    if len(images) > 1 and not given.get("mostRecent"):
        raise Refused(
            "Your query returned more than one result. Please try a more specific search criteria, or set "
            "`most_recent` attribute to true."
        )
    found = max(images, key=lambda image: image["CreationDate"])
    return {
        "id": found["ImageId"],
        "imageId": found["ImageId"],
        "architecture": found["Architecture"],
        "arn": f"arn:aws:ec2:{aws.region}::image/{found['ImageId']}",
        "blockDeviceMappings": [
            {
                "deviceName": each["DeviceName"],
                "noDevice": "",
                "virtualName": each.get("VirtualName", ""),
                # A plain map to the engine: its keys stay as Terraform spells them.
                "ebs": {xform_name(key): _text(value) for key, value in each.get("Ebs", {}).items()},
            }
            for each in found["BlockDeviceMappings"]
        ],
        "creationDate": found["CreationDate"],
        "name": found["Name"],
        "ownerId": found["OwnerId"],
        "platformDetails": found.get("PlatformDetails", ""),
        "public": found["Public"],
        "rootDeviceName": found["RootDeviceName"],
        "rootDeviceType": found["RootDeviceType"],
        "state": found["State"],
        "virtualizationType": found["VirtualizationType"],
        **given,
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


LOOK_UPS: dict[str, tuple[Keys, Any]] = {
    **lookups_network.LOOK_UPS,
    "aws:cloudcontrol/getResource:getResource": (known("typeName", "identifier"), _resource),
    "aws:servicequotas/getServiceQuota:getServiceQuota": (known("serviceCode", "quotaCode"), _quota),
    "aws:ec2/getAmi:getAmi": (known("owners", "mostRecent", "tags", filters=known("name", "values")), _image),
}
