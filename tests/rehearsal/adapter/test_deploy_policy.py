"""docs/deploy-policy.json: every stack is deployed with exactly this policy, which is no wider than required."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.mocks import up
from rehearsal.aws.journal import JournalEntry
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.clusters import ubuntu_image_id
from tests.rehearsal.adapter.conftest import ROOT, start_account
from tests.rehearsal.adapter.test_stacks import config_of
from tests.rehearsal.deploy_policy import CASES, changing_actions, deploy, policy, text_of
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import Launch
from trainyard.operations.stop import stop_run

FILE = ROOT / "docs/deploy-policy.json"
NAME = "operator"
LIMIT = 6144  # non-white-space characters of a managed policy, IAM user guide, "IAM and AWS STS quotas"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with start_account(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture(scope="module")
def operator(aws: EmulatedAws) -> boto3.Session:
    """A session with no permissions but those of the file."""
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}}
    iam = boto3.client("iam")
    iam.create_role(RoleName=NAME, AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))
    arn = iam.create_policy(PolicyName=NAME, PolicyDocument=FILE.read_text())["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=NAME, PolicyArn=arn)
    role = f"arn:aws:iam::{ACCOUNT}:role/{NAME}"
    keys = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName=NAME)["Credentials"]
    return boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], aws.region)


@pytest.fixture(scope="module")
def calls(aws: EmulatedAws, operator: boto3.Session) -> list[JournalEntry]:
    """The operator's calls that create and destroy every stack."""
    account = EmulatedAccount(aws.region, run_commands=False, session=operator)
    for name in CASES:
        deploy(aws, name, account)
    return [entry for entry in aws.journal() if entry.role == NAME]


@pytest.mark.slow  # it deploys eleven stacks
def test_every_stack_is_deployed_and_destroyed_with_the_policy(calls: list[JournalEntry]) -> None:
    assert len(calls) > 100 * len(CASES)
    assert [f"{call.service}:{call.operation}" for call in calls if call.status == 403] == []


@pytest.mark.slow  # it deploys eleven stacks
def test_policy_is_current(calls: list[JournalEntry]) -> None:
    """To update the file: `python -m tests.rehearsal.deploy_policy > docs/deploy-policy.json`."""
    assert text_of(policy(changing_actions(calls))) == FILE.read_text()


def test_policy_is_smaller_than_the_limit_of_managed_policies() -> None:
    assert len("".join(FILE.read_text().split())) <= LIMIT


@pytest.mark.slow  # it deploys a stack
def test_launch_and_stop_are_allowed(
    aws: EmulatedAws, operator: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their calls of Auto Scaling, EventBridge Scheduler, EC2 and S3, with the role of the deployed stack."""
    up(config_of("local", {}), "commands", ROOT, account=EmulatedAccount(aws.region, run_commands=False))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", operator)
    client.cache_clear()
    earlier = len(aws.journal())
    try:
        cluster = Cluster("commands", aws.region)
        launch = Launch(cluster, RecordingDisplay())
        launch.schedule_termination([])
        launch.write_record(launch.record)
        launch.workers.put_lease(time.time() + 1200)
        assert launch.workers.lease() is not None
        stop_run(cluster, RecordingDisplay())
    finally:
        client.cache_clear()
    calls = [call for call in aws.journal()[earlier:] if call.role == NAME]
    assert "scheduler" in {call.service for call in calls}
    assert [call.error_message for call in calls if call.status == 403] == []


TRUST = json.dumps({"Statement": []})
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/trainyard/p/s/boundary"
OTHER_ROLE, UNIVERSAL = f"arn:aws:iam::{ACCOUNT}:role/other", "arn:aws:scheduler:::aws-sdk"
WIDE = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})


def instance_of_another_application() -> str:
    """Start an instance without tags; return its id."""
    image = ubuntu_image_id("us-east-1")
    started = boto3.client("ec2").run_instances(ImageId=image, InstanceType="c7i.large", MinCount=1, MaxCount=1)
    return str(started["Instances"][0]["InstanceId"])


DENIED: dict[str, Callable[[boto3.Session], Any]] = {
    "a role outside of the path": lambda session: session.client("iam").create_role(
        RoleName="other", AssumeRolePolicyDocument=TRUST, PermissionsBoundary=BOUNDARY
    ),
    "a role without a boundary": lambda session: session.client("iam").create_role(
        RoleName="other", Path="/trainyard/p/s/", AssumeRolePolicyDocument=TRUST
    ),
    "a boundary that is not of a stack": lambda session: session.client("iam").create_role(
        RoleName="other",
        Path="/trainyard/p/s/",
        AssumeRolePolicyDocument=TRUST,
        PermissionsBoundary="arn:aws:iam::aws:policy/AdministratorAccess",
    ),
    "permissions of the operator": lambda session: session.client("iam").put_role_policy(
        RoleName=NAME, PolicyName="wide", PolicyDocument=WIDE
    ),
    "a role of another application in a schedule": lambda session: session.client("scheduler").create_schedule(
        Name="other",
        ScheduleExpression="at(2030-01-01T00:00:00)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": f"{UNIVERSAL}:autoscaling:updateAutoScalingGroup", "RoleArn": OTHER_ROLE, "Input": "{}"},
    ),
    "termination of an instance of another application": lambda session: session.client("ec2").terminate_instances(
        InstanceIds=[instance_of_another_application()]
    ),
    "a shell on an instance of another application": lambda session: session.client("ssm").start_session(
        Target=instance_of_another_application()
    ),
    "the size of a group of another application": lambda session: session.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName="other", DesiredCapacity=1
    ),
    "deletion of a file system of another application": lambda session: session.client("fsx").delete_file_system(
        FileSystemId="fs-0123456789abcdef0"
    ),
    "a user": lambda session: session.client("iam").create_user(UserName="other"),
    "a bucket of another application": lambda session: session.client("s3").create_bucket(Bucket="other-application"),
}


@pytest.mark.parametrize("case", DENIED)
def test_policy_denies(operator: boto3.Session, case: str) -> None:
    with pytest.raises(ClientError) as raised:
        DENIED[case](operator)
    assert raised.value.response["Error"]["Code"] in {
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedOperation",
    }
