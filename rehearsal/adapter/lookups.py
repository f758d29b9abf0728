"""The program's look-ups (invokes), answered from the account."""

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.adapter import lookups_ec2
from rehearsal.adapter.handler import Keys, known
from rehearsal.adapter.instance_types import as_look_up
from rehearsal.adapter.lookups_storage import STORAGE_LOOK_UPS
from rehearsal.adapter.session import Aws

Answer = dict[str, Any]
LookUp = Callable[[Aws, Mapping[str, Any]], Answer]

_PARTITIONS = {"cn-": ("aws-cn", "amazonaws.com.cn"), "us-gov-": ("aws-us-gov", "amazonaws.com")}


def _partition(aws: Aws, given: Mapping[str, Any]) -> Answer:
    found = (value for prefix, value in _PARTITIONS.items() if aws.region.startswith(prefix))
    partition, suffix = next(found, ("aws", "amazonaws.com"))
    return {
        "id": partition,
        "partition": partition,
        "dnsSuffix": suffix,
        "reverseDnsPrefix": ".".join(reversed(suffix.split("."))),
    }


def _region(aws: Aws, given: Mapping[str, Any]) -> Answer:
    host = f"ec2.{aws.region}.{_partition(aws, given)['dnsSuffix']}"
    return {"id": aws.region, "name": aws.region, "region": aws.region, "endpoint": host, "description": aws.region}


def _caller(aws: Aws, given: Mapping[str, Any]) -> Answer:
    found = aws.client("sts").get_caller_identity()
    account = found["Account"]
    return {"id": account, "accountId": account, "arn": found["Arn"], "userId": found["UserId"]}


def _zones(aws: Aws, given: Mapping[str, Any]) -> Answer:
    found = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    wanted = sorted(
        (zone for zone in found if given.get("state") in (None, zone["State"])), key=lambda zone: zone["ZoneName"]
    )
    return {
        "id": aws.region,
        "names": [zone["ZoneName"] for zone in wanted],
        "zoneIds": [zone["ZoneId"] for zone in wanted],
        "groupNames": sorted({zone.get("GroupName", aws.region) for zone in wanted}),
        **given,
    }


def _offerings(aws: Aws, given: Mapping[str, Any]) -> Answer:
    pages = aws.client("ec2").get_paginator("describe_instance_type_offerings")
    filters = [{"Name": item["name"], "Values": item["values"]} for item in given.get("filters", [])]
    found = [
        offer
        for page in pages.paginate(LocationType=given["locationType"], Filters=filters)
        for offer in page["InstanceTypeOfferings"]
    ]
    return {
        "id": aws.region,
        "instanceTypes": [offer["InstanceType"] for offer in found],
        "locations": [offer["Location"] for offer in found],
        "locationTypes": [offer["LocationType"] for offer in found],
        **given,
    }


def _instance_type(aws: Aws, given: Mapping[str, Any]) -> Answer:
    found = aws.client("ec2").describe_instance_types(InstanceTypes=[given["instanceType"]])["InstanceTypes"]
    return {**as_look_up(found[0]), "region": aws.region}


def _parameter(aws: Aws, given: Mapping[str, Any]) -> Answer:
    found = aws.client("ssm").get_parameter(Name=given["name"])["Parameter"]
    return {
        "id": found["Name"],
        "name": found["Name"],
        "arn": found["ARN"],
        "type": found["Type"],
        "value": found["Value"],
        "insecureValue": found["Value"],
        "version": found["Version"],
    }


def _tagged(aws: Aws, given: Mapping[str, Any]) -> Answer:
    pages = aws.client("resourcegroupstaggingapi").get_paginator("get_resources")
    filters = [{"Key": item["key"], "Values": item["values"]} for item in given.get("tagFilters", [])]
    found = [
        {
            "resourceArn": entry["ResourceARN"],
            "tags": {tag["Key"]: tag["Value"] for tag in entry["Tags"]},
            "complianceDetails": [],
        }
        for page in pages.paginate(ResourceTypeFilters=given.get("resourceTypeFilters", []), TagFilters=filters)
        for entry in page["ResourceTagMappingList"]
    ]
    return {"id": aws.region, "resourceTagMappingLists": found, **given}


LOOK_UPS: dict[str, tuple[Keys, LookUp]] = {
    "aws:index/getPartition:getPartition": (known(), _partition),
    "aws:index/getRegion:getRegion": (known(), _region),
    "aws:index/getCallerIdentity:getCallerIdentity": (known(), _caller),
    "aws:index/getAvailabilityZones:getAvailabilityZones": (known("state"), _zones),
    "aws:ec2/getInstanceType:getInstanceType": (known("instanceType"), _instance_type),
    "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": (
        known("locationType", filters=known("name", "values")),
        _offerings,
    ),
    "aws:ssm/getParameter:getParameter": (known("name"), _parameter),
    "aws:resourcegroupstaggingapi/getResources:getResources": (
        known("resourceTypeFilters", tagFilters=known("key", "values")),
        _tagged,
    ),
    **lookups_ec2.LOOK_UPS,
    **STORAGE_LOOK_UPS,
}
