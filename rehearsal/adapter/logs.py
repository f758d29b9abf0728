"""CloudWatch log groups and VPC flow logs."""

from typing import Any

from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys
from rehearsal.adapter.refresh import select, tag_dict
from rehearsal.adapter.tagging import diff_tags, update_ec2_tags


class LogGroup(Handler):
    """A CloudWatch log group."""

    type = "aws:cloudwatch/logGroup:LogGroup"
    keys = input_keys("name", "retentionInDays", "kmsKeyId", "tags")
    name_input = "name"
    replace_on_changes = frozenset(["name"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the log group."""
        logs = call.aws.client("logs")
        name = self.physical_name(call)
        arguments = call.api_arguments(kmsKeyId="kmsKeyId")
        logs.create_log_group(logGroupName=name, tags=dict(call.inputs.get("tags", {})), **arguments)
        if call.inputs.get("retentionInDays"):
            logs.put_retention_policy(logGroupName=name, retentionInDays=call.inputs["retentionInDays"])
        return name, {"name": name, "arn": self._arn(call, name)}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the log group."""
        logs, inputs = call.aws.client("logs"), call.inputs
        if call.has_changed("retentionInDays"):
            if inputs.get("retentionInDays"):
                logs.put_retention_policy(logGroupName=call.id, retentionInDays=inputs["retentionInDays"])
            else:
                logs.delete_retention_policy(logGroupName=call.id)
        if call.has_changed("kmsKeyId"):
            if inputs.get("kmsKeyId"):
                logs.associate_kms_key(logGroupName=call.id, kmsKeyId=inputs["kmsKeyId"])
            else:
                logs.disassociate_kms_key(logGroupName=call.id)
        arn = self._arn(call, call.id)
        put, removed = diff_tags(call)
        if removed:
            logs.untag_resource(resourceArn=arn, tagKeys=removed)
        if put:
            logs.tag_resource(resourceArn=arn, tags={tag["Key"]: tag["Value"] for tag in put})
        return {"name": call.id, "arn": arn}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        group = self._describe(call, call.id)
        if group is None:
            return None
        arn = str(group["arn"]).removesuffix(":*")
        inputs = {"name": call.id, "retentionInDays": group.get("retentionInDays", 0)}
        key = {"kmsKeyId": group.get("kmsKeyId", "")}
        tags = call.aws.client("logs").list_tags_for_resource(resourceArn=arn)["tags"]
        return ReadResult(inputs={**inputs, **key, "tags": tags})

    def delete(self, call: HandlerCall) -> None:
        """Delete the log group."""
        call.aws.client("logs").delete_log_group(logGroupName=call.id)

    def _arn(self, call: HandlerCall, name: str) -> str:
        """Return the ARN as the provider does: without the `:*` suffix for log streams."""
        return str(self._describe(call, name)["arn"]).removesuffix(":*")

    def _describe(self, call: HandlerCall, name: str) -> Any:
        pages = call.aws.client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=name)
        groups = (group for page in pages for group in page["logGroups"])
        return next((group for group in groups if group["logGroupName"] == name), None)


class FlowLog(Handler):
    """Flow logs of a VPC. EC2 can update only their tags."""

    type = "aws:ec2/flowLog:FlowLog"
    keys = input_keys(
        "vpcId",
        "trafficType",
        "logDestinationType",
        "logDestination",
        "iamRoleArn",
        "maxAggregationInterval",
        "tags",
    )
    replace_on_changes = frozenset(keys) - {"tags"}

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the flow log."""
        response = call.aws.client("ec2").create_flow_logs(
            ResourceType="VPC",
            ResourceIds=[call.inputs["vpcId"]],
            **call.api_arguments(
                trafficType="TrafficType",
                logDestinationType="LogDestinationType",
                logDestination="LogDestination",
                iamRoleArn="DeliverLogsPermissionArn",
                maxAggregationInterval="MaxAggregationInterval",
            ),
            **call.tag_specification("vpc-flow-log"),
        )
        for failure in response.get("Unsuccessful", []):
            raise RequestFailedError(f"CreateFlowLogs: {failure['Error']['Code']}: {failure['Error']['Message']}")
        (flow_log_id,) = response["FlowLogIds"]
        return flow_log_id, self._outputs(call, flow_log_id)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call)
        return self._outputs(call, call.id)

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        flow_logs = call.aws.client("ec2").describe_flow_logs(FlowLogIds=[call.id])["FlowLogs"]
        if not flow_logs:
            return None
        inputs = select(
            flow_logs[0],
            vpcId="ResourceId",
            trafficType="TrafficType",
            logDestinationType="LogDestinationType",
            logDestination="LogDestination",
            iamRoleArn="DeliverLogsPermissionArn",
            maxAggregationInterval="MaxAggregationInterval",
        )
        return ReadResult(inputs={**inputs, "tags": tag_dict(flow_logs[0].get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the flow log."""
        call.aws.client("ec2").delete_flow_logs(FlowLogIds=[call.id])

    def _outputs(self, call: HandlerCall, flow_log_id: str) -> dict[str, Any]:
        caller = call.aws.client("sts").get_caller_identity()["Arn"].split(":")
        return {"arn": f"arn:{caller[1]}:ec2:{call.aws.region}:{caller[4]}:vpc-flow-log/{flow_log_id}"}


HANDLERS = (LogGroup(), FlowLog())
