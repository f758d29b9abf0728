"""IAM roles and their permissions."""

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from infra.policy.unscoped import UNSCOPED
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.static_ec2 import SUBNET, VPC
from tests.infra.conftest import ECR_IMAGE, with_container

BOUNDARY = "aws:iam/policy:Policy"
ROLE, POLICY = "aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy"


def policy_of(run: Deployment, role: str) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads(run.resource(POLICY, role).inputs["policy"])["Statement"]
    return statements


def all_statements(run: Deployment) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statements that allow."""
    for policy in run.resources_of_type(POLICY):
        for statement in policy_of(run, policy.name):
            if statement["Effect"] == "Allow":
                yield policy.name, statement


def test_no_statement_allows_all_actions(shipped: Deployment) -> None:
    for name, statement in all_statements(shipped):
        assert not any("*" in action for action in statement["Action"]), (name, statement)


def test_resources_are_of_the_stack_or_actions_are_in_unscoped(shipped: Deployment) -> None:
    for name, statement in all_statements(shipped):
        for resource in statement["Resource"]:
            if resource == "*":
                assert set(statement["Action"]) <= UNSCOPED.keys(), (name, statement)
            elif ":autoscaling:" in resource:  # the engine generates their names
                assert statement["Condition"]["StringEquals"] == {
                    "aws:ResourceTag/trainyard:stack": f"trainyard/{shipped.stack}"
                }
            else:
                assert resource.split("*")[0].rstrip("/:") not in ("arn:aws:s3", "arn:aws:kms", "arn:aws:ssm"), resource
                assert not resource.startswith(("arn:aws:s3:::*", "arn:aws:kms:us-east-1:123456789012:*")), resource


def test_unscoped_actions_have_a_reason_and_a_page(changed: Callable[..., Deployment]) -> None:
    run = changed(job=with_container(ECR_IMAGE))
    used = {action for _, each in all_statements(run) if each["Resource"] == ["*"] for action in each["Action"]}
    assert used == UNSCOPED.keys()
    assert all(reason and page.startswith("https://docs.aws.amazon.com/") for reason, page in UNSCOPED.values())


def test_unscoped_statement_needs_a_reason() -> None:
    from infra.components.identity import _unscoped

    with pytest.raises(AssertionError, match="add the reason to UNSCOPED"):
        _unscoped("All", "ec2:RunInstances")


def test_roles_have_no_managed_policies(shipped: Deployment) -> None:
    """AWS managed policies are broad, and AWS may change them."""
    for role in shipped.resources_of_type(ROLE):
        assert not {"managedPolicyArns", "inlinePolicies"} & set(role.inputs)
    assert not shipped.resources_of_type("aws:iam/rolePolicyAttachment:RolePolicyAttachment")


def test_agents_of_workers_assume_the_role_of_the_job(shipped: Deployment) -> None:
    roles = {role.name: role for role in shipped.resources_of_type(ROLE)}
    (trust,) = json.loads(roles["identity-job"].inputs["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"AWS": roles["identity-workers"].outputs["arn"]}
    (statement,) = [each for each in policy_of(shipped, "identity-workers") if "sts:AssumeRole" in each["Action"]]
    assert statement["Resource"] == [roles["identity-job"].outputs["arn"]]


def test_each_other_role_trusts_a_single_service_of_this_account(shipped: Deployment) -> None:
    for role in shipped.resources_of_type(ROLE):
        if role.name == "identity-job":
            continue
        (trust,) = json.loads(role.inputs["assumeRolePolicy"])["Statement"]
        (service,) = trust["Principal"].values()
        if service != "ec2.amazonaws.com":
            assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}


def test_every_role_has_the_permissions_boundary(changed: Callable[..., Deployment], local: Deployment) -> None:
    boundary = "arn:aws:iam::123456789012:policy/boundary"
    run = changed(identity={"permissions_boundary": boundary})
    assert {role.inputs["permissionsBoundary"] for role in run.resources_of_type(ROLE)} == {boundary}
    assert not run.resources_of_type(BOUNDARY)
    (own,) = local.resources_of_type(BOUNDARY)
    assert {role.inputs["permissionsBoundary"] for role in local.resources_of_type(ROLE)} == {own.outputs["arn"]}


def test_boundary_is_limited_to_the_stack(shipped: Deployment) -> None:
    (policy,) = shipped.resources_of_type(BOUNDARY)
    statements = json.loads(policy.inputs["policy"])["Statement"]
    assert not any(action.startswith("iam:") for each in statements for action in each["Action"])
    described = {action for each in statements if "*" in each["Resource"] for action in each["Action"]}
    assert described == {"autoscaling:Describe*", "ec2:Describe*", "ssm:UpdateInstanceInformation", "ssmmessages:*"}
    assert not [arn for each in statements for arn in each["Resource"] if arn.startswith("arn:aws:s3:::*")]
    assert len("".join(policy.inputs["policy"].split())) < 6144  # the limit of a managed policy


def test_roles_profiles_and_policies_have_the_path_of_the_stack(shipped: Deployment) -> None:
    for kind in (ROLE, BOUNDARY, "aws:iam/instanceProfile:InstanceProfile"):
        assert {each.inputs["path"] for each in shipped.resources_of_type(kind)} == {
            f"/trainyard/trainyard/{shipped.stack}/"
        }


def test_nodes_credentials_are_denied_outside_of_the_vpc(shipped: Deployment) -> None:
    nat = shipped.resource("aws:ec2/eip:Eip", "network-nat-address").outputs["publicIp"]
    for role in ("identity-head", "identity-workers"):
        (deny,) = [each for each in policy_of(shipped, role) if each["Effect"] == "Deny"]
        assert (deny["Action"], deny["Resource"]) == ("*", "*")
        assert deny["Condition"] == {
            "StringNotEquals": {"aws:SourceVpc": shipped.resource("aws:ec2/vpc:Vpc", "network-vpc").id},
            "NotIpAddress": {"aws:SourceIp": [f"{nat}/32"]},
            "Bool": {"aws:ViaAWSService": "false"},
        }


def test_without_nat_credentials_are_valid_through_endpoints_only(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"nat_gateway": False}, node={"provisioning": "skip"})
    (deny,) = [each for each in policy_of(run, "identity-workers") if each["Effect"] == "Deny"]
    assert set(deny["Condition"]) == {"StringNotEquals", "Bool"}


def test_routes_of_an_existing_network_are_unknown(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"existing": {"vpc_id": VPC, "subnet_id": SUBNET}})
    assert not [each for each in policy_of(run, "identity-workers") if each["Effect"] == "Deny"]


def test_head_changes_groups_of_its_stack_only(shipped: Deployment) -> None:
    statement = next(
        each for each in policy_of(shipped, "identity-head") if "autoscaling:SetDesiredCapacity" in each["Action"]
    )
    assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/trainyard:stack": f"trainyard/{shipped.stack}"}}


def written(run: Deployment, role: str) -> set[str]:
    """Patterns of the keys that a role writes, with the bucket's name in the program."""
    buckets = {f"arn:aws:s3:::{run.exports[f'{name}_bucket']}": name for name in ("data", "staging")}
    statements = [each for each in policy_of(run, role) if {"s3:PutObject", "s3:DeleteObject"} & set(each["Action"])]
    arns = [arn.partition("/") for each in statements for arn in each["Resource"]]
    return {f"{buckets[bucket]}/{key}" for bucket, _, key in arns}


def test_agents_write_their_streams_only(shipped: Deployment) -> None:
    streams = {f"data/runs/*/{name}/*" for name in ("events", "heartbeats", "logs", "metrics")}
    assert written(shipped, "identity-workers") == {"staging/bake/events/*", "data/runs/*/metrics.json", *streams}


def test_the_job_writes_checkpoints_and_results_only(shipped: Deployment) -> None:
    assert written(shipped, "identity-job") == {"data/runs/*/checkpoints/*", "data/runs/*/results/*"}


def test_the_head_writes_no_run_record(shipped: Deployment) -> None:
    """A run's source, command and image come from the record, which the operator writes."""
    keys = written(shipped, "identity-head")
    assert "data/runs/*/control.json" in keys
    assert not any(fnmatch(key, pattern) for key in ("data/runs/a/run.json", "staging/run.json") for pattern in keys)


def test_the_head_cannot_raise_the_size_of_a_group(shipped: Deployment) -> None:
    actions = "autoscaling:PutScheduledUpdateGroupAction"
    (statement,) = [each for each in policy_of(shipped, "identity-head") if actions in each["Action"]]
    assert statement["Condition"]["Null"] == {"autoscaling:MaxSize": "true"}
    assert statement["Condition"]["NumericEqualsIfExists"] == {"autoscaling:MinSize": "0"}
    roles = {name for name, each in all_statements(shipped) if "autoscaling:UpdateAutoScalingGroup" in each["Action"]}
    assert roles == {"termination"}  # of EventBridge Scheduler


def test_nodes_use_the_key_through_s3_only(shipped: Deployment) -> None:
    arn = shipped.resource("aws:kms/key:Key", "key-stack-key").outputs["arn"]
    for role in ("identity-head", "identity-workers"):
        (statement,) = [each for each in policy_of(shipped, role) if "kms:Decrypt" in each["Action"]]
        assert statement["Resource"] == [arn]
        assert statement["Condition"] == {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}


def test_workers_read_the_named_secrets_only(local: Deployment, changed: Callable[..., Deployment]) -> None:
    assert not any("ssm:GetParameter" in each["Action"] for each in policy_of(local, "identity-workers"))
    run = changed(
        job={"name": "a", "dataset": "d", "builtin_corpus": True, "train": {}, "secrets": {"TOKEN": "/team/token"}}
    )
    statement = next(each for each in policy_of(run, "identity-workers") if "ssm:GetParameter" in each["Action"])
    assert statement["Resource"] == ["arn:aws:ssm:us-east-1:123456789012:parameter/team/token"]


def test_head_locks_results_for_the_days_of_the_settings(changed: Callable[..., Deployment], local: Deployment) -> None:
    run = changed(storage={"lock_results_days": 30})
    (statement,) = [each for each in policy_of(run, "identity-head") if "s3:PutObjectRetention" in each["Action"]]
    assert [resource.partition("/")[2] for resource in statement["Resource"]] == ["runs/*/results/*"]
    assert statement["Condition"] == {
        "StringEquals": {"s3:object-lock-mode": "GOVERNANCE"},
        "NumericLessThanEquals": {"s3:object-lock-remaining-retention-days": "31"},
    }
    policies = (policy_of(run, "identity-workers"), policy_of(local, "identity-head"))
    assert not any("Retention" in str(policy) for policy in policies)


def test_workers_pull_the_jobs_image_and_no_other(changed: Callable[..., Deployment], local: Deployment) -> None:
    run = changed(job=with_container(ECR_IMAGE))
    pulls = {
        tuple(each["Action"]): each["Resource"]
        for each in policy_of(run, "identity-workers")
        if "ecr:" in str(each["Action"])
    }
    assert pulls == {
        ("ecr:GetAuthorizationToken",): ["*"],
        ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"): [
            "arn:aws:ecr:us-east-1:763104351884:repository/pytorch-training"
        ],
    }
    other_registry = changed(job=with_container("nvcr.io/nvidia/pytorch:26.10-py3"))
    for policy in (
        policy_of(run, "identity-head"),
        policy_of(local, "identity-workers"),
        policy_of(other_registry, "identity-workers"),
    ):
        assert "ecr:" not in str(policy)


def test_every_group_has_a_termination_hook(shipped: Deployment) -> None:
    hooks = shipped.resources_of_type("aws:autoscaling/lifecycleHook:LifecycleHook")
    assert sorted(hook.inputs["autoscalingGroupName"] for hook in hooks) == sorted(shipped.exports["groups"])
    for hook in hooks:
        assert hook.inputs["lifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert (hook.inputs["heartbeatTimeout"], hook.inputs["defaultResult"]) == (120, "CONTINUE")
