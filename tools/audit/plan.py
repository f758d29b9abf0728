"""A Terraform plan in JSON with the resources of a stack: checkov reads it, but no graph of Pulumi.

Sources: https://developer.hashicorp.com/terraform/internals/json-format (the format), and the documentation of the
Terraform provider for AWS, from which pulumi_aws is generated (names of types and arguments).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rehearsal.adapter.deployment import Deployment, Resource

# Type of Pulumi -> type of Terraform.
TYPES: Mapping[str, str] = {
    "aws:autoscaling/group:Group": "aws_autoscaling_group",
    "aws:autoscaling/lifecycleHook:LifecycleHook": "aws_autoscaling_lifecycle_hook",
    "aws:budgets/budget:Budget": "aws_budgets_budget",
    "aws:cloudwatch/logGroup:LogGroup": "aws_cloudwatch_log_group",
    "aws:cloudwatch/metricAlarm:MetricAlarm": "aws_cloudwatch_metric_alarm",
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": "aws_default_security_group",
    "aws:ec2/eip:Eip": "aws_eip",
    "aws:ec2/flowLog:FlowLog": "aws_flow_log",
    "aws:ec2/internetGateway:InternetGateway": "aws_internet_gateway",
    "aws:ec2/launchTemplate:LaunchTemplate": "aws_launch_template",
    "aws:ec2/natGateway:NatGateway": "aws_nat_gateway",
    "aws:ec2/placementGroup:PlacementGroup": "aws_placement_group",
    "aws:ec2/route:Route": "aws_route",
    "aws:ec2/routeTable:RouteTable": "aws_route_table",
    "aws:ec2/routeTableAssociation:RouteTableAssociation": "aws_route_table_association",
    "aws:ec2/securityGroup:SecurityGroup": "aws_security_group",
    "aws:ec2/subnet:Subnet": "aws_subnet",
    "aws:ec2/vpc:Vpc": "aws_vpc",
    "aws:ec2/vpcEndpoint:VpcEndpoint": "aws_vpc_endpoint",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": "aws_fsx_data_repository_association",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "aws_fsx_lustre_file_system",
    "aws:iam/instanceProfile:InstanceProfile": "aws_iam_instance_profile",
    "aws:iam/policy:Policy": "aws_iam_policy",
    "aws:iam/role:Role": "aws_iam_role",
    "aws:iam/rolePolicy:RolePolicy": "aws_iam_role_policy",
    "aws:kms/key:Key": "aws_kms_key",
    "aws:s3/bucket:Bucket": "aws_s3_bucket",
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": "aws_s3_bucket_lifecycle_configuration",
    "aws:s3/bucketObjectv2:BucketObjectv2": "aws_s3_object",
    "aws:s3/bucketPolicy:BucketPolicy": "aws_s3_bucket_policy",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": "aws_s3_bucket_public_access_block",
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        "aws_s3_bucket_server_side_encryption_configuration"
    ),
    "aws:s3/bucketVersioning:BucketVersioning": "aws_s3_bucket_versioning",
    "aws:scheduler/scheduleGroup:ScheduleGroup": "aws_scheduler_schedule_group",
    "aws:sns/topic:Topic": "aws_sns_topic",
    "aws:sns/topicPolicy:TopicPolicy": "aws_sns_topic_policy",
    "aws:sns/topicSubscription:TopicSubscription": "aws_sns_topic_subscription",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": "aws_vpc_security_group_egress_rule",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": "aws_vpc_security_group_ingress_rule",
}
# Resources of other providers.
_OMITTED = frozenset({"command:local:Command"})
# Pulumi uses the plural of these blocks.
_BLOCKS = {"rules": "rule", "transitions": "transition", "tags_all": "tags"}
# Maps of names to values; other objects are blocks, which Terraform has in a list.
_MAPS = frozenset({"tags"})
_UPPER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IDENTIFIERS = ("id", "arn", "bucket", "name")


def plan_of(deployment: Deployment) -> dict[str, Any]:
    """Return the plan that creates the resources of a deployment. Raises KeyError for an unknown type."""
    resources = [each for each in deployment.resources.values() if each.custom and each.type not in _OMITTED]
    identifiers = dict(_identifiers(resources))
    planned = [_planned(resource) for resource in resources]
    changes = [
        {**each, "change": {"actions": ["create"], "before": None, "after": each["values"], "after_unknown": {}}}
        for each in planned
    ]
    configured = [
        {**each, "expressions": _expressions(resource, identifiers)}
        for each, resource in zip(planned, resources, strict=True)
    ]
    return {
        "format_version": "1.2",
        "terraform_version": "1.9.0",
        "planned_values": {"root_module": {"resources": planned}},
        "resource_changes": changes,
        "configuration": {"root_module": {"resources": configured}},
    }


def address_of(resource: Resource) -> str:
    """Return the address of a resource in the plan."""
    return f"{TYPES[resource.type]}.{resource.name}"


def _planned(resource: Resource) -> dict[str, Any]:
    return {
        "address": address_of(resource),
        "mode": "managed",
        "type": TYPES[resource.type],
        "name": resource.name,
        "provider_name": "registry.terraform.io/hashicorp/aws",
        "values": _arguments(resource.inputs),
    }


def _arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {}
    for name, value in inputs.items():
        snake = _UPPER.sub("_", name).lower()
        snake = _BLOCKS.get(snake, snake)
        arguments[snake] = value if snake in _MAPS else _argument(value)
    return arguments


def _argument(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [_arguments(value)]
    if isinstance(value, list):
        return [_arguments(item) if isinstance(item, Mapping) else item for item in value]
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__  # such as a file


def _identifiers(resources: list[Resource]) -> Iterator[tuple[str, str]]:
    """Yield (value, reference) of the outputs by which other resources refer to a resource."""
    for resource in resources:
        for name in _IDENTIFIERS:
            value = resource.id if name == "id" else resource.outputs.get(name)
            if isinstance(value, str) and value:
                yield value, f"{address_of(resource)}.{name}"


def _expressions(resource: Resource, identifiers: Mapping[str, str]) -> dict[str, Any]:
    """Return the references of the arguments: checkov connects resources, such as a bucket and its policy, by them."""
    expressions = {}
    for name, value in resource.inputs.items():
        values = value if isinstance(value, list) else [value]
        matches = [identifiers[each] for each in values if isinstance(each, str) and each in identifiers]
        references = [each for each in matches if not each.startswith(f"{address_of(resource)}.")]
        if references:
            addresses = [reference.rpartition(".")[0] for reference in references]
            expressions[_UPPER.sub("_", name).lower()] = {"references": [*references, *addresses]}
    return expressions
