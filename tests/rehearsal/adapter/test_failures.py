"""What the adapter does not know, what the API refuses, and a destroy that gets stuck."""

from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.errors import Refused, UnknownKey, UnknownType, WaitExpired
from rehearsal.adapter.mocks import UpFailed
from rehearsal.adapter.session import wait_until
from rehearsal.adapter.static import StaticAccount
from rehearsal.adapter.teardown import DestroyFailed, destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy

Say = Callable[[str], None]


def quiet(line: str) -> None:
    assert line


def subject(type_: str = "aws:ec2/vpc:Vpc", **inputs: object) -> Subject:
    return Subject(urn="urn:pulumi:s::trainyard::t::mine", type=type_, name="mine", inputs=inputs)


@pytest.mark.parametrize("static", [True, False])
def test_unknown_type_is_an_error_that_names_it(account: Adapter, static: bool, tmp_path: Path) -> None:
    on = StaticAccount() if static else account
    with pytest.raises(UnknownType, match=r"mine.*aws:ec2/vpnGateway:VpnGateway"):
        on.create(subject("aws:ec2/vpnGateway:VpnGateway"), tmp_path, quiet)


@pytest.mark.parametrize("static", [True, False])
def test_unknown_key_is_an_error_that_names_resource_type_and_key(
    account: Adapter, static: bool, tmp_path: Path
) -> None:
    on = StaticAccount() if static else account
    with pytest.raises(UnknownKey, match=r"aws:ec2/vpc:Vpc mine.*ipv6CidrBlock"):
        on.create(subject(cidrBlock="10.0.0.0/16", ipv6CidrBlock="::/56"), tmp_path, quiet)


def test_unknown_key_inside_an_object_is_told_with_its_path(account: Adapter, tmp_path: Path) -> None:
    rules = [{"id": "a", "filter": {"tag": {"key": "x", "valeu": "y"}}}]
    wanted = subject("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration", bucket="b", rules=rules)
    with pytest.raises(UnknownKey, match=r"rules\.filter\.tag\.valeu"):
        account.create(wanted, tmp_path, quiet)


def test_unknown_key_is_found_before_anything_is_made(aws: EmulatedAws, account: Adapter, tmp_path: Path) -> None:
    calls = len(aws.journal())
    with pytest.raises(UnknownKey):
        account.create(subject(cidrBlock="10.0.0.0/16", surprise=1), tmp_path, quiet)
    assert len(aws.journal()) == calls


def test_unknown_look_up_is_an_error(account: Adapter) -> None:
    with pytest.raises(UnknownType, match="aws:ec2/getInstance:getInstance"):
        account.look_up("aws:ec2/getInstance:getInstance", {})


def test_refusal_names_resource_and_the_apis_message(account: Adapter, tmp_path: Path) -> None:
    wanted = subject("aws:ec2/subnet:Subnet", vpcId="vpc-00000000", cidrBlock="10.0.0.0/17")
    with pytest.raises(
        Refused, match=r"aws:ec2/subnet:Subnet mine: CreateSubnet: InvalidVpcID.NotFound: .*vpc-00000000"
    ):
        account.create(wanted, tmp_path, quiet)


def test_program_with_an_unknown_key_fails_the_run_and_can_be_taken_down(
    aws: EmulatedAws, account: Adapter, tree: Path
) -> None:
    network = tree / "infra/components/vpc.py"
    network.write_text(network.read_text().replace('connectivity_type="public",', 'private_ip="10.42.128.9",'))
    before = {(each.service, each.kind, each.id) for each in aws.dump()}
    with pytest.raises(UpFailed, match=r"aws:ec2/natGateway:NatGateway nat.*privateIp") as failed:
        Deploy(tree)("broken", account, "local")
    run = failed.value.deployment
    assert run.one("aws:ec2/vpc:Vpc", "vpc").made
    assert not run.one("aws:ec2/natGateway:NatGateway", "nat").made
    destroy(run)
    left = {(each.service, each.kind, each.id) for each in aws.dump()} - before
    assert {kind for _, kind, _ in left} <= {"bucket", "key"}


def test_refused_resource_fails_the_run_with_the_apis_message(aws: EmulatedAws, account: Adapter, tree: Path) -> None:
    security = tree / "infra/components/security.py"
    security.write_text(security.read_text().replace('cidr_ipv4="0.0.0.0/0"', 'cidr_ipv4="300.0.0.0/0"'))
    with pytest.raises(
        UpFailed, match=r"SecurityGroupEgressRule nodes-to-world: AuthorizeSecurityGroupEgress: "
    ) as failed:
        Deploy(tree)("refused", account, "local")
    destroy(failed.value.deployment)


def test_destroy_that_gets_stuck_says_what_is_left_and_can_go_on(
    aws: EmulatedAws, account: Adapter, deploy: Deploy
) -> None:
    run = deploy("stuck", account, "local")
    ec2 = boto3.client("ec2")
    subnet = run.one("aws:ec2/subnet:Subnet", "private").id
    foreign = ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    with pytest.raises(DestroyFailed, match=r"left standing: .*Subnet private") as failed:
        destroy(run)
    names = {(resource.type.rpartition(":")[2], resource.name) for resource in failed.value.left}
    assert ("Subnet", "private") in names
    assert ("Vpc", "vpc") in names
    assert not any(kind == "Instance" for kind, _ in names)

    ec2.delete_network_interface(NetworkInterfaceId=foreign)
    destroy(run)
    assert not [resource for resource in run.standing if not resource.retain_on_delete]


def test_wait_says_what_it_waited_for() -> None:
    with pytest.raises(WaitExpired, match="until pigs fly"):
        wait_until("pigs fly", lambda: False, 0.01)
