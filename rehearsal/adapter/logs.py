"""CloudWatch log groups, and the flow logs that fill them."""

from typing import Any

from rehearsal.adapter.errors import Refused
from rehearsal.adapter.handler import Call, Handler, Made, known
from rehearsal.adapter.tagging import retag, tag_changes


class LogGroup(Handler):
    type = "aws:cloudwatch/logGroup:LogGroup"
    keys = known("name", "retentionInDays", "kmsKeyId", "tags")
    named = "name"
    replaces = frozenset(["name"])

    def create(self, call: Call) -> Made:
        logs = call.aws.client("logs")
        name = self.name_of(call)
        asked = call.only(kmsKeyId="kmsKeyId")
        logs.create_log_group(logGroupName=name, tags=dict(call.inputs.get("tags", {})), **asked)
        if call.inputs.get("retentionInDays"):
            logs.put_retention_policy(logGroupName=name, retentionInDays=call.inputs["retentionInDays"])
        return name, {"name": name, "arn": self._arn(call, name)}

    def update(self, call: Call) -> dict[str, Any]:
        logs, given = call.aws.client("logs"), call.inputs
        if call.changed("retentionInDays"):
            if given.get("retentionInDays"):
                logs.put_retention_policy(logGroupName=call.id, retentionInDays=given["retentionInDays"])
            else:
                logs.delete_retention_policy(logGroupName=call.id)
        if call.changed("kmsKeyId"):
            if given.get("kmsKeyId"):
                logs.associate_kms_key(logGroupName=call.id, kmsKeyId=given["kmsKeyId"])
            else:
                logs.disassociate_kms_key(logGroupName=call.id)
        arn = self._arn(call, call.id)
        put, gone = tag_changes(call)
        if gone:
            logs.untag_resource(resourceArn=arn, tagKeys=gone)
        if put:
            logs.tag_resource(resourceArn=arn, tags={tag["Key"]: tag["Value"] for tag in put})
        return {"name": call.id, "arn": arn}

    def delete(self, call: Call) -> None:
        call.aws.client("logs").delete_log_group(logGroupName=call.id)

    def _arn(self, call: Call, name: str) -> str:
        """As the provider has it: without the `:*` of the streams."""
        pages = call.aws.client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=name)
        groups = (group for page in pages for group in page["logGroups"])
        return next(str(group["arn"]).removesuffix(":*") for group in groups if group["logGroupName"] == name)


class FlowLog(Handler):
    """Flow logs of a VPC. EC2 changes none of them in place but for their tags."""

    type = "aws:ec2/flowLog:FlowLog"
    keys = known(
        "vpcId",
        "trafficType",
        "logDestinationType",
        "logDestination",
        "iamRoleArn",
        "maxAggregationInterval",
        "tags",
    )
    replaces = frozenset(keys) - {"tags"}

    def create(self, call: Call) -> Made:
        answer = call.aws.client("ec2").create_flow_logs(
            ResourceType="VPC",
            ResourceIds=[call.inputs["vpcId"]],
            **call.only(
                trafficType="TrafficType",
                logDestinationType="LogDestinationType",
                logDestination="LogDestination",
                iamRoleArn="DeliverLogsPermissionArn",
                maxAggregationInterval="MaxAggregationInterval",
            ),
            **call.tag_specification("vpc-flow-log"),
        )
        for failure in answer.get("Unsuccessful", []):
            raise Refused(f"CreateFlowLogs: {failure['Error']['Code']}: {failure['Error']['Message']}")
        (made,) = answer["FlowLogIds"]
        return made, self._outputs(call, made)

    def update(self, call: Call) -> dict[str, Any]:
        retag(call)
        return self._outputs(call, call.id)

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_flow_logs(FlowLogIds=[call.id])

    def _outputs(self, call: Call, name: str) -> dict[str, Any]:
        account = call.aws.client("sts").get_caller_identity()["Arn"].split(":")
        return {"arn": f"arn:{account[1]}:ec2:{call.aws.region}:{account[4]}:vpc-flow-log/{name}"}


HANDLERS = (LogGroup(), FlowLog())
