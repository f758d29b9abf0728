"""Lookups of EC2: Cloud Control resources such as capacity reservations, service quotas, and images."""

from collections.abc import Mapping
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from rehearsal.adapter import lookups_network
from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.handler import InputKeys, input_keys
from rehearsal.adapter.lookup_results import LookupResult, ec2_filters, missing_image_error, missing_resource_error


def _resource(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    type_name, identifier = arguments["typeName"], arguments["identifier"]
    try:
        response = aws.client("cloudcontrol").get_resource(TypeName=type_name, Identifier=identifier)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            raise missing_resource_error(type_name, identifier) from error
        raise
    resource = response["ResourceDescription"]
    return {"id": resource["Identifier"], "properties": resource["Properties"], **arguments}


def _quota(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    """Return the applied value of a quota, or AWS's default when none was ever applied."""
    quotas = aws.client("service-quotas")
    quota = {"ServiceCode": arguments["serviceCode"], "QuotaCode": arguments["quotaCode"]}
    default = quotas.get_aws_default_service_quota(**quota)["Quota"]
    applied = default
    try:
        applied = quotas.get_service_quota(**quota)["Quota"]
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
        **arguments,
    }


_IMAGE_OPTIONS = {"owners": "Owners", "includeDeprecated": "IncludeDeprecated"}


def _image(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    options = {api: arguments[key] for key, api in _IMAGE_OPTIONS.items() if key in arguments}
    images = aws.client("ec2").describe_images(Filters=ec2_filters(arguments), **options)["Images"]
    if not images:
        raise missing_image_error()
    if arguments.get("mostRecent"):
        images = sorted(images, key=lambda each: each["CreationDate"])[-1:]
    if len(images) > 1:
        raise RequestFailedError(
            "Your query returned more than one result. Please try a more specific search criteria, or set "
            "`most_recent` attribute to true."
        )
    (image,) = images
    return {
        "id": image["ImageId"],
        "imageId": image["ImageId"],
        "architecture": image["Architecture"],
        "arn": f"arn:aws:ec2:{aws.region}::image/{image['ImageId']}",
        "blockDeviceMappings": [
            {
                "deviceName": mapping["DeviceName"],
                "noDevice": "",
                "virtualName": mapping.get("VirtualName", ""),
                # The engine treats it as a plain map, so the keys stay in Terraform's spelling.
                "ebs": {xform_name(key): _text(value) for key, value in mapping.get("Ebs", {}).items()},
            }
            for mapping in image["BlockDeviceMappings"]
        ],
        "creationDate": image["CreationDate"],
        "name": image["Name"],
        "ownerId": image["OwnerId"],
        "platformDetails": image.get("PlatformDetails", ""),
        "public": image["Public"],
        "rootDeviceName": image["RootDeviceName"],
        "rootDeviceType": image["RootDeviceType"],
        "state": image["State"],
        "virtualizationType": image["VirtualizationType"],
        **arguments,
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


LOOKUPS: dict[str, tuple[InputKeys, Any]] = {
    **lookups_network.LOOKUPS,
    "aws:cloudcontrol/getResource:getResource": (input_keys("typeName", "identifier"), _resource),
    "aws:servicequotas/getServiceQuota:getServiceQuota": (input_keys("serviceCode", "quotaCode"), _quota),
    "aws:ec2/getAmi:getAmi": (input_keys(*_IMAGE_OPTIONS, "mostRecent", filters=input_keys("name", "values")), _image),
}
