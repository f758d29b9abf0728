"""The schedule group and the role of the termination schedules."""

import json

from rehearsal.adapter.deployment import Deployment
from trainyard.models.manifest import Manifest

OBJECT = "aws:s3/bucketObjectv2:BucketObjectv2"


def test_only_event_bridge_assumes_the_role(local: Deployment) -> None:
    role = local.resource("aws:iam/role:Role", "termination").inputs
    (trust,) = json.loads(role["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}


def test_the_role_ends_workers_and_reservations_of_its_stack_only(local: Deployment) -> None:
    policy = json.loads(local.resource("aws:iam/rolePolicy:RolePolicy", "termination").inputs["policy"])
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert actions == {"autoscaling:UpdateAutoScalingGroup", "ec2:CancelCapacityReservation"}
    for statement in policy["Statement"]:
        assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/trainyard:stack": "trainyard/local"}}


def test_no_node_may_change_a_schedule(local: Deployment) -> None:
    for policy in local.resources_of_type("aws:iam/rolePolicy:RolePolicy"):
        assert "scheduler:" not in policy.inputs["policy"]


def test_the_manifest_names_the_schedule_group_and_the_maximum_sizes(local: Deployment) -> None:
    manifest = Manifest.model_validate_json(local.resource(OBJECT, "manifest").inputs["content"])
    group = local.resource("aws:autoscaling/group:Group", "workers")
    assert manifest.termination.schedule_group.startswith("termination-")
    assert manifest.groups[0].max_size == group.inputs["maxSize"] == 3
