"""Lookups: the provider functions (invokes) that the program calls, with results from the emulated account."""

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.adapter import lookups_ec2
from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.handler import InputKeys, input_keys
from rehearsal.adapter.instance_types import to_lookup_result
from rehearsal.adapter.lookup_results import LookupResult, ec2_filters, missing_budget_error
from rehearsal.adapter.lookups_storage import STORAGE_LOOKUPS

Lookup = Callable[[AwsClients, Mapping[str, Any]], LookupResult]

# Prefix of a region's name -> partition and DNS suffix, of the partitions other than `aws`.
_PARTITIONS = {"cn-": ("aws-cn", "amazonaws.com.cn"), "us-gov-": ("aws-us-gov", "amazonaws.com")}


def _partition(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    matches = (partition for prefix, partition in _PARTITIONS.items() if aws.region.startswith(prefix))
    partition, suffix = next(matches, ("aws", "amazonaws.com"))
    return {
        "id": partition,
        "partition": partition,
        "dnsSuffix": suffix,
        "reverseDnsPrefix": ".".join(reversed(suffix.split("."))),
    }


def _region(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    host = f"ec2.{aws.region}.{_partition(aws, arguments)['dnsSuffix']}"
    return {"id": aws.region, "name": aws.region, "region": aws.region, "endpoint": host, "description": aws.region}


def _caller_identity(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    identity = aws.client("sts").get_caller_identity()
    account = identity["Account"]
    return {"id": account, "accountId": account, "arn": identity["Arn"], "userId": identity["UserId"]}


def _availability_zones(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    zones = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    matches = sorted(
        (zone for zone in zones if arguments.get("state") in (None, zone["State"])), key=lambda zone: zone["ZoneName"]
    )
    return {
        "id": aws.region,
        "names": [zone["ZoneName"] for zone in matches],
        "zoneIds": [zone["ZoneId"] for zone in matches],
        "groupNames": sorted({zone.get("GroupName", aws.region) for zone in matches}),
        **arguments,
    }


def _instance_type_offerings(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    pages = aws.client("ec2").get_paginator("describe_instance_type_offerings")
    offerings = [
        offering
        for page in pages.paginate(LocationType=arguments["locationType"], Filters=ec2_filters(arguments))
        for offering in page["InstanceTypeOfferings"]
    ]
    return {
        "id": aws.region,
        "instanceTypes": [offering["InstanceType"] for offering in offerings],
        "locations": [offering["Location"] for offering in offerings],
        "locationTypes": [offering["LocationType"] for offering in offerings],
        **arguments,
    }


def _instance_type(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    response = aws.client("ec2").describe_instance_types(InstanceTypes=[arguments["instanceType"]])
    return {**to_lookup_result(response["InstanceTypes"][0]), "region": aws.region}


def _tagged_resources(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    pages = aws.client("resourcegroupstaggingapi").get_paginator("get_resources")
    filters = [{"Key": item["key"], "Values": item["values"]} for item in arguments.get("tagFilters", [])]
    resources = [
        {
            "resourceArn": entry["ResourceARN"],
            "tags": {tag["Key"]: tag["Value"] for tag in entry["Tags"]},
            "complianceDetails": [],
        }
        for page in pages.paginate(ResourceTypeFilters=arguments.get("resourceTypeFilters", []), TagFilters=filters)
        for entry in page["ResourceTagMappingList"]
    ]
    return {"id": aws.region, "resourceTagMappingLists": resources, **arguments}


def _budget(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    """Return a budget, or the provider's error. Source: terraform-provider-aws, budgets/budget_data_source.go."""
    budgets, account = aws.client("budgets"), aws.client("sts").get_caller_identity()["Account"]
    try:
        budget = budgets.describe_budget(AccountId=account, BudgetName=arguments["name"])["Budget"]
    except budgets.exceptions.NotFoundException as error:
        raise missing_budget_error() from error
    return {
        "id": f"{account}:{budget['BudgetName']}",
        "accountId": account,
        "budgetType": budget["BudgetType"],
        **arguments,
    }


# Token of a provider function -> the arguments that it supports, and the function that returns its result.
LOOKUPS: dict[str, tuple[InputKeys, Lookup]] = {
    "aws:index/getPartition:getPartition": (input_keys(), _partition),
    "aws:index/getRegion:getRegion": (input_keys(), _region),
    "aws:index/getCallerIdentity:getCallerIdentity": (input_keys(), _caller_identity),
    "aws:index/getAvailabilityZones:getAvailabilityZones": (input_keys("state"), _availability_zones),
    "aws:ec2/getInstanceType:getInstanceType": (input_keys("instanceType"), _instance_type),
    "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": (
        input_keys("locationType", filters=input_keys("name", "values")),
        _instance_type_offerings,
    ),
    "aws:budgets/getBudget:getBudget": (input_keys("name"), _budget),
    "aws:resourcegroupstaggingapi/getResources:getResources": (
        input_keys("resourceTypeFilters", tagFilters=input_keys("key", "values")),
        _tagged_resources,
    ),
    **lookups_ec2.LOOKUPS,
    **STORAGE_LOOKUPS,
}
