"""The IAM policy of operators: `python -m tests.rehearsal.deploy_policy > docs/deploy-policy.json` writes it.

Actions that change AWS: those of the calls with which the adapter creates and destroys every stack in the emulated
account, and COMMANDS. Reads are allowed by service, since the Pulumi plugin reads more than the adapter.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.mocks import up
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.iam.required_actions import iam_action
from rehearsal.aws.iam.required_actions_s3 import s3_action
from rehearsal.aws.iam.required_actions_tags import TAGGED_RESOURCES
from rehearsal.aws.journal import JournalEntry
from rehearsal.aws.process import EmulatedAws
from rehearsal.seed import create_existing_resources
from tests.infra.conftest import ROOT, STACKS
from tests.rehearsal.adapter.test_stacks import OTHERS, config_of
from trainyard.aws import tags
from trainyard.config.loader import load_settings

# Stacks with other settings that need no permission for resources of the user.
VARIANTS = ("no-nat-gateway", "with-backups", "fsx-with-efa")
CASES = {**{stack: (stack, {}) for stack in STACKS}, **{name: OTHERS[name] for name in VARIANTS}}

# Actions of updates, of tags at creation, of calls that AWS makes with the operator's permissions, and of commands.
# Auto Scaling requires RunInstances for groups with a launch template; LaunchInstances calls CreateFleet.
COMMANDS = {
    "autoscaling": (
        "CancelInstanceRefresh CompleteLifecycleAction CreateOrUpdateTags DeleteScheduledAction LaunchInstances "
        "PutScheduledUpdateGroupAction SetDesiredCapacity StartInstanceRefresh TerminateInstanceInAutoScalingGroup "
        "UpdateAutoScalingGroup"
    ),
    "cloudwatch": "TagResource",
    "ec2": (
        "CancelCapacityReservation CreateCapacityReservation CreateFleet CreateImage CreateLaunchTemplateVersion "
        "DeleteSnapshot DeleteTags DeregisterImage ModifyCapacityReservation ModifyLaunchTemplate "
        "ModifySecurityGroupRules ModifyVpcEndpoint ReplaceRoute RunInstances StopInstances TerminateInstances"
    ),
    "fsx": "TagResource UpdateFileSystem",
    "iam": (
        "CreatePolicyVersion DeletePolicyVersion TagInstanceProfile TagPolicy TagRole UpdateAssumeRolePolicy UpdateRole"
    ),
    "kms": "CreateGrant Decrypt Encrypt GenerateDataKey PutKeyPolicy ReEncryptFrom ReEncryptTo TagResource",
    "logs": "AssociateKmsKey TagResource",
    "s3": (
        "DeleteObjectVersion GetBucketLocation GetBucketPolicy GetBucketPublicAccessBlock GetBucketTagging "
        "GetBucketVersioning GetEncryptionConfiguration GetLifecycleConfiguration GetObject GetObjectTagging "
        "ListBucket ListBucketVersions PutBucketLogging PutBucketObjectLockConfiguration PutObjectTagging RestoreObject"
    ),
    "scheduler": "CreateSchedule DeleteSchedule TagResource UpdateSchedule",
    "sns": "TagResource",
    "ssm": "StartSession TerminateSession",
}
READS = {
    "autoscaling": "Describe*",
    "budgets": "ListTagsForResource ViewBudget",
    "cloudformation": "GetResource",
    "cloudwatch": "Describe* ListTagsForResource",
    "ec2": "Describe* GetConsoleOutput",
    "ecr": "BatchGetImage",
    "fsx": "Describe* ListTagsForResource",
    "kms": "Describe* Get* List*",
    "logs": "Describe* ListTagsForResource",
    "s3": "ListAllMyBuckets",
    "scheduler": "Get* List*",
    "servicequotas": "Get* List*",
    "sns": "Get* List*",
    "sts": "GetCallerIdentity",
    "tag": "GetResources",
}
ROLES, PROFILES, POLICIES = (f"arn:aws:iam::*:{kind}/trainyard/*" for kind in ("role", "instance-profile", "policy"))
_BOUNDARY_ACTIONS = ("CreateRole", "DeleteRolePolicy", "PutRolePermissionsBoundary", "PutRolePolicy")
_UNTAGGED = {"autoscaling:CreateAutoScalingGroup", "autoscaling:CreateOrUpdateTags"}  # the group may have no tags yet
_LINKED_ROLES = ("autoscaling", "ec2fleet", "spot", "fsx", "s3.data-source.lustre.fsx")


def deploy(aws: EmulatedAws, name: str, account: EmulatedAccount) -> None:
    """Create the stack of a case, and destroy it."""
    config = config_of(*CASES[name])
    create_existing_resources(aws, load_settings(config["trainyard:cluster"], Path(ROOT), name), None)
    destroy(up(config, name, ROOT, account=account))


def changing_actions(calls: Iterable[JournalEntry]) -> Iterator[str]:
    """Yield the IAM actions of the calls that change AWS."""
    for entry in calls:
        if entry.mutating:
            yield s3_action(entry.operation) if entry.service == "s3" else iam_action(entry.service, entry.operation)


def policy(actions: Iterable[str]) -> dict[str, Any]:
    """Return the policy that allows these actions and the static ones."""
    by_service: dict[str, set[str]] = defaultdict(set)
    for action in actions:
        service, _, operation = action.partition(":")
        by_service[service].add(operation)
    for service, operations in COMMANDS.items():
        by_service[service] |= set(operations.split())
    iam, s3 = by_service.pop("iam"), by_service.pop("s3")
    changes = {f"{service}:{name}" for service, names in by_service.items() for name in names} - {"ssm:StartSession"}
    of_stacks = {each for each in changes if each.startswith("autoscaling:")} - _UNTAGGED | set(TAGGED_RESOURCES)
    is_of_a_stack = {"Null": {f"aws:ResourceTag/{tags.STACK}": "false"}}
    reads = [f"{service}:{name}" for service, names in READS.items() for name in names.split()]
    own_boundary = {"ArnLike": {"iam:PermissionsBoundary": POLICIES}}
    services = {
        "StringEquals": {
            "iam:PassedToService": ["ec2.amazonaws.com", "scheduler.amazonaws.com", "vpc-flow-logs.amazonaws.com"]
        }
    }
    linked = [f"arn:aws:iam::*:role/aws-service-role/{service}.amazonaws.com/*" for service in _LINKED_ROLES]
    other_iam = [f"iam:{name}" for name in iam - {*_BOUNDARY_ACTIONS, "PassRole"}]
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow("Read", reads, ["*"]),
            _allow("Change", changes - of_stacks, ["*"]),
            _allow("ChangeStacks", of_stacks, ["*"], is_of_a_stack),
            _allow("Documents", ["ssm:StartSession"], ["arn:aws:ssm:*:*:document/*"]),
            _allow("Buckets", [f"s3:{name}" for name in s3], ["arn:aws:s3:::trainyard-*"]),
            _allow("ReadIam", ["iam:Get*", "iam:List*"], [ROLES, PROFILES, POLICIES]),
            _allow("RolesWithBoundary", [f"iam:{name}" for name in _BOUNDARY_ACTIONS], [ROLES], own_boundary),
            _allow("Iam", other_iam, [ROLES, PROFILES, POLICIES]),
            _allow("PassRoles", ["iam:PassRole"], [ROLES], services),
            _allow("LinkedRoles", ["iam:AttachRolePolicy", "iam:CreateServiceLinkedRole", "iam:PutRolePolicy"], linked),
        ],
    }


def _allow(
    sid: str, actions: Iterable[str], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def generate(aws: EmulatedAws) -> dict[str, Any]:
    """Deploy every stack in an account, and return the policy."""
    for name in CASES:
        deploy(aws, name, EmulatedAccount(aws.region, run_commands=False))
    return policy(changing_actions(entry for entry in aws.journal() if entry.access_key == aws.secrets.adapter.id))


def text_of(document: dict[str, Any]) -> str:
    """Return the content of the file."""
    return json.dumps(document, indent=2) + "\n"


if __name__ == "__main__":
    from tests.rehearsal.adapter.conftest import start_account

    with tempfile.TemporaryDirectory() as folder, start_account(Path(folder)) as account:
        sys.stdout.write(text_of(generate(account)))
