"""IAM roles and instance profiles of head and workers, limited by resource and prefix."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.components.perimeter import Perimeter
from infra.components.statements import Statement, allow, policy_document, stack_groups, stack_reservations
from infra.policy.unscoped import UNSCOPED
from infra.scope import Scope
from trainyard.aws.ecr import EcrImage
from trainyard.models import layout

# Objects that the controller writes, that agents read, and that agents write: trainyard.models.layout.
_CONTROLLER_KEYS = (
    *(f"runs/*/{name}" for name in ("control.json", "outcome.json", "health_check.json")),
    *(f"runs/*/{name}/*" for name in ("attempts", "decisions", "events", "health_checks")),
    layout.REPLACED_NODES,
)
_AGENT_READS = ("runs/*/run.json", "runs/*/control.json")
_AGENT_KEYS = (*(f"runs/*/{name}/*" for name in ("events", "heartbeats", "logs", "metrics")), "runs/*/metrics.json")


@dataclass(frozen=True, kw_only=True)
class IdentityArgs:
    """Arguments of Identity.

    `key_arn` is the KMS key of the data bucket, `secrets` the names of the SSM parameters of the job, `wheels` the S3
    prefix (s3://bucket/prefix/) of Python packages, `sources` the S3 prefixes of the job's data and model in other
    buckets and `source_keys` the ARNs of their KMS keys, `image` the container image of the job in ECR.
    `lock_results_days`: days for which the head may lock results, or None.
    `perimeter`: the network outside of which the credentials of nodes are denied.
    """

    scope: Scope
    data_bucket_arn: pulumi.Input[str]
    staging_bucket_arn: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    secrets: Sequence[str]
    wheels: str | None
    sources: Sequence[str]
    source_keys: Sequence[str]
    image: EcrImage | None
    lock_results_days: int | None
    perimeter: Perimeter | None = None


class Identity(pulumi.ComponentResource):
    """Instance profiles of head and workers, and the role of the job, which the agents of the workers assume."""

    head_profile: pulumi.Output[str]
    worker_profile: pulumi.Output[str]
    head_role_arn: pulumi.Output[str]
    worker_role_arn: pulumi.Output[str]
    job_role_arn: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Identity", name, None, opts)
        head = self._node_role(name, "head", args.scope)
        self.head_profile = self._profile(head, name, "head", args, _head(args))
        worker = self._node_role(name, "workers", args.scope)
        self.head_role_arn, self.worker_role_arn = head.arn, worker.arn
        trust = _trust(AWS=worker.arn)
        job = create_role(f"{name}-job", "job", args.scope, trust, child_options(self, "job"))
        create_role_policy(f"{name}-job", job, _within_network(args, _job(args)), child_options(self, "job"))
        self.job_role_arn = job.arn
        self.worker_profile = self._profile(worker, name, "workers", args, _workers(args, job.arn))
        self.register_outputs({"head_profile": self.head_profile, "worker_profile": self.worker_profile})

    def _node_role(self, prefix: str, node: str, scope: Scope) -> aws.iam.Role:
        trust = _trust(Service=f"ec2.{scope.dns_suffix}")
        return create_role(f"{prefix}-{node}", node, scope, trust, child_options(self, node))

    def _profile(
        self, role: aws.iam.Role, prefix: str, node: str, args: IdentityArgs, statements: list[Statement]
    ) -> pulumi.Output[str]:
        name = f"{prefix}-{node}"
        policy = create_role_policy(name, role, _within_network(args, statements), child_options(self, node))
        # The policy exists before the profile: an instance must not boot with missing permissions.
        profile = aws.iam.InstanceProfile(
            name,
            path=args.scope.iam_path,
            role=role.name,
            tags=args.scope.tags(f"{node}-profile"),
            opts=child_options(self, node, depends_on=[policy]),
        )
        return profile.name


def service_role(
    name: str, user: str, scope: Scope, service: str, statements: list[Statement], opts: pulumi.ResourceOptions
) -> tuple[aws.iam.Role, aws.iam.RolePolicy]:
    """Create a role for an AWS service, and its inline policy. `name`: of the resources; `user`: who uses the role."""
    trust = _trust(Service=f"{service}.{scope.dns_suffix}")
    trust["Condition"] = {"StringEquals": {"aws:SourceAccount": scope.account}}
    role = create_role(name, user, scope, trust, opts)
    return role, create_role_policy(name, role, statements, opts)


def _trust(**principal: pulumi.Input[str]) -> Statement:
    return {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}


def create_role(name: str, user: str, scope: Scope, trust: Statement, opts: pulumi.ResourceOptions) -> aws.iam.Role:
    """Create a role. `trust`: statement of its trust policy; `user`: who uses the role."""
    return aws.iam.Role(
        name,
        path=scope.iam_path,
        assume_role_policy=policy_document(trust),
        description=f"Trainyard stack {scope.stack}: {user}",
        permissions_boundary=scope.boundary,
        tags=scope.tags(f"{user}-role"),
        opts=opts,
    )


def create_role_policy(
    name: str, role: aws.iam.Role, statements: list[Statement], opts: pulumi.ResourceOptions
) -> aws.iam.RolePolicy:
    """Create the inline policy of a role."""
    return aws.iam.RolePolicy(name, role=role.name, policy=policy_document(*statements), opts=opts)


def _within_network(args: IdentityArgs, statements: list[Statement]) -> list[Statement]:
    """Add the denial of requests from other networks. Sessions of the job's role are used on the node, too."""
    return statements if args.perimeter is None else [*statements, args.perimeter.deny_outside()]


def _unscoped(sid: str, *actions: str) -> Statement:
    assert all(action in UNSCOPED for action in actions), f"{actions}: add the reason to UNSCOPED"
    return allow(sid, actions, ["*"])


def _objects(bucket_arn: pulumi.Input[str], *keys: str) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(bucket_arn, "/", key) for key in keys]


def _sessions() -> Statement:
    """Permissions of the SSM agent for Session Manager.

    The managed policy AmazonSSMManagedInstanceCore would also allow every node to read all parameters of the account.
    """
    return _unscoped("Sessions", *(action for action in UNSCOPED if action.startswith(("ssm:", "ssmmessages:"))))


def _list(args: IdentityArgs) -> Statement:
    # No condition on s3:prefix: with one, S3 returns 403 instead of 404 for a missing key.
    return allow("List", ["s3:ListBucket"], [args.data_bucket_arn, args.staging_bucket_arn])


def _lease(args: IdentityArgs) -> Statement:
    """Allow scheduled actions that only reduce a group: they set no maximum size, and a minimum of 0.

    The group's maximum size limits SetDesiredCapacity. Source:
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
    """
    conditions = {"Null": {"autoscaling:MaxSize": "true"}, "NumericEqualsIfExists": {"autoscaling:MinSize": "0"}}
    return stack_groups(args.scope, "Lease", ["autoscaling:PutScheduledUpdateGroupAction"], **conditions)


def _data_key(args: IdentityArgs) -> Statement:
    """Allow the data key through S3 only."""
    s3_service = f"s3.{args.scope.region}.{args.scope.dns_suffix}"
    condition = {"StringEquals": {"kms:ViaService": s3_service}}
    return allow("DataKey", ["kms:Decrypt", "kms:GenerateDataKey"], [args.key_arn], Condition=condition)


def _wheels(args: IdentityArgs) -> list[Statement]:
    """Allow the download of wheels from a bucket of the user."""
    return [] if args.wheels is None else _read_prefix(args, "Wheels", args.wheels)


def _read_prefix(args: IdentityArgs, sid: str, uri: str) -> list[Statement]:
    """Allow reading the objects below one prefix of a bucket of the user, and listing the bucket.

    S3 libraries such as s3fs send HeadObject for the prefix without its slash and for missing keys below it, and expect
    404. S3 returns 403 without permission to read the key, or without permission to list the bucket: a condition on
    s3:prefix does not apply to these calls and denies them.
    """
    bucket, prefix = layout.split_s3_uri(uri)
    arn = f"arn:{args.scope.partition}:s3:::{bucket}"
    keys = sorted({f"{prefix}*", prefix.rstrip("/") or "*"})
    return [
        allow(f"List{sid}", ["s3:ListBucket"], [arn]),
        allow(f"Read{sid}", ["s3:GetObject"], [f"{arn}/{key}" for key in keys]),
    ]


def _sources(args: IdentityArgs) -> list[Statement]:
    """Allow reading the job's data and model in buckets of the user, and their keys through S3 only."""
    prefixes = enumerate(sorted(set(args.sources)), start=1)
    statements = [each for number, uri in prefixes for each in _read_prefix(args, f"Source{number}", uri)]
    keys = sorted(set(args.source_keys))
    if keys:
        services = sorted({f"s3.{key.split(':')[3]}.{args.scope.dns_suffix}" for key in keys})
        condition = {"StringEquals": {"kms:ViaService": services}}
        statements.append(allow("SourceKeys", ["kms:Decrypt"], keys, Condition=condition))
    return statements


def _image(args: IdentityArgs) -> list[Statement]:
    """Allow the pull of the job's image. A registry of another account must allow this account.

    ECR user guide, "AWS managed policies": the actions of AmazonEC2ContainerRegistryPullOnly, for one repository.
    """
    if args.image is None:
        return []
    return [
        _unscoped("RegistryToken", "ecr:GetAuthorizationToken"),
        allow("JobImage", ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"], [args.image.arn(args.scope.partition)]),
    ]


def _lock_results(args: IdentityArgs) -> list[Statement]:
    """Allow locks of results in governance mode, at most for the days of the settings and one for the clocks.

    Without the limits a compromised head could lock objects for many years, in a mode that nobody can remove.
    """
    if args.lock_results_days is None:
        return []
    condition = {
        "StringEquals": {"s3:object-lock-mode": "GOVERNANCE"},
        "NumericLessThanEquals": {"s3:object-lock-remaining-retention-days": str(args.lock_results_days + 1)},
    }
    results = _objects(args.data_bucket_arn, "runs/*/results/*")
    return [allow("LockResults", ["s3:PutObjectRetention"], results, Condition=condition)]


def _head(args: IdentityArgs) -> list[Statement]:
    """Permissions of the controller: lease, capacity and instance health of the stack's groups, run records, events."""
    return [
        stack_groups(
            args.scope,
            "StackGroups",
            [
                "autoscaling:SetDesiredCapacity",
                "autoscaling:DeleteScheduledAction",
                "autoscaling:TerminateInstanceInAutoScalingGroup",
                "autoscaling:SetInstanceHealth",
                "autoscaling:CompleteLifecycleAction",
            ],
        ),
        _lease(args),
        _unscoped(
            "DescribeGroups",
            "autoscaling:DescribeAutoScalingGroups",
            "autoscaling:DescribeScheduledActions",
            "autoscaling:DescribeScalingActivities",
        ),
        _unscoped("DescribeInstances", "ec2:DescribeInstanceTopology", "ec2:DescribeInstanceStatus"),
        _unscoped("DescribeReservations", "ec2:DescribeCapacityReservations", "ec2:DescribeCapacityBlocks"),
        # The extension, reduction and end of the reservations that the launch makes.
        stack_reservations(
            args.scope, "StackReservations", ["ec2:ModifyCapacityReservation", "ec2:CancelCapacityReservation"]
        ),
        _sessions(),
        _list(args),
        _data_key(args),
        allow("ReadStaging", ["s3:GetObject"], _objects(args.staging_bucket_arn, "*")),
        allow("WriteHeadEvents", ["s3:PutObject"], _objects(args.staging_bucket_arn, "head/*")),
        allow("ReadRuns", ["s3:GetObject"], _objects(args.data_bucket_arn, "runs/*", layout.REPLACED_NODES)),
        allow("WriteRuns", ["s3:PutObject"], _objects(args.data_bucket_arn, *_CONTROLLER_KEYS)),
        *_lock_results(args),
        *_wheels(args),
    ]


def _workers(args: IdentityArgs, job_role_arn: pulumi.Input[str]) -> list[Statement]:
    """Permissions of the agent of a worker: boot files, the streams of runs, and the role of the job."""
    keys = ("bundle/*", "job/*", layout.MANIFEST, layout.CURRENT_RUN, layout.CONTROLLER_ENDPOINT)
    boot_files = _objects(args.staging_bucket_arn, *keys)
    statements = [
        _sessions(),
        _list(args),
        _data_key(args),
        allow("ReadStaging", ["s3:GetObject"], boot_files),
        allow("WriteBakeEvents", ["s3:PutObject"], _objects(args.staging_bucket_arn, f"{layout.BAKE_EVENTS}*")),
        # The node downloads the model of the job.
        allow("ReadData", ["s3:GetObject"], _objects(args.data_bucket_arn, "datasets/*")),
        allow("ReadRuns", ["s3:GetObject"], _objects(args.data_bucket_arn, *_AGENT_READS, *_AGENT_KEYS)),
        allow("WriteRuns", ["s3:PutObject"], _objects(args.data_bucket_arn, *_AGENT_KEYS)),
        allow("JobRole", ["sts:AssumeRole"], [job_role_arn]),
        stack_groups(args.scope, "Drain", ["autoscaling:RecordLifecycleActionHeartbeat"]),
        *_wheels(args),
        *_sources(args),
        *_image(args),
    ]
    if args.secrets:
        scope = args.scope
        parameters = f"arn:{scope.partition}:ssm:{scope.region}:{scope.account}:parameter/"
        names = [parameters + name.lstrip("/") for name in sorted(set(args.secrets))]
        statements.append(allow("JobSecrets", ["ssm:GetParameter", "ssm:GetParameters"], names))
    return statements


def _job(args: IdentityArgs) -> list[Statement]:
    """Permissions of the job: its data, its checkpoints and its results.

    The agent limits each session to one run and its data (trainyard.node.agent.credentials).
    """
    data = args.data_bucket_arn
    return [
        allow("List", ["s3:ListBucket"], [data]),
        _data_key(args),
        allow("ReadData", ["s3:GetObject"], _objects(data, "datasets/*")),
        # DeleteObject: committing a checkpoint renames it, in S3 a copy and a delete. Versioning keeps both.
        allow(
            "Runs",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            _objects(data, "runs/*/checkpoints/*", "runs/*/results/*"),
        ),
        *_sources(args),
    ]
