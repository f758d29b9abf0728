"""Errors: unsupported types and inputs, failed API requests, and a destroy that fails."""

from pathlib import Path

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.aws_clients import wait_until
from rehearsal.adapter.errors import RequestFailedError, UnsupportedInputError, UnsupportedTypeError, WaitTimeoutError
from rehearsal.adapter.mocks import UpError
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.adapter.teardown import DestroyError, destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy


def check_line(line: str) -> None:
    assert line


def request(type_: str = "aws:ec2/vpc:Vpc", **inputs: object) -> ResourceRequest:
    return ResourceRequest(urn="urn:pulumi:s::trainyard::t::example", type=type_, name="example", inputs=inputs)


@pytest.mark.parametrize("static", [True, False])
def test_unsupported_type_raises_an_error_that_names_it(account: EmulatedAccount, static: bool, tmp_path: Path) -> None:
    target = StaticAccount() if static else account
    with pytest.raises(UnsupportedTypeError, match=r"example.*aws:ec2/vpnGateway:VpnGateway"):
        target.create(request("aws:ec2/vpnGateway:VpnGateway"), tmp_path, check_line)


@pytest.mark.parametrize("static", [True, False])
def test_unsupported_input_raises_an_error_that_names_resource_and_input(
    account: EmulatedAccount, static: bool, tmp_path: Path
) -> None:
    target = StaticAccount() if static else account
    with pytest.raises(UnsupportedInputError, match=r"aws:ec2/vpc:Vpc example.*ipv6CidrBlock"):
        target.create(request(cidrBlock="10.0.0.0/16", ipv6CidrBlock="::/56"), tmp_path, check_line)


def test_error_of_a_nested_unsupported_input_has_the_path(account: EmulatedAccount, tmp_path: Path) -> None:
    rules = [{"id": "a", "filter": {"tag": {"key": "x", "valeu": "y"}}}]
    expected = request("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration", bucket="b", rules=rules)
    with pytest.raises(UnsupportedInputError, match=r"rules\.filter\.tag\.valeu"):
        account.create(expected, tmp_path, check_line)


def test_unsupported_input_is_rejected_before_any_api_call(
    aws: EmulatedAws, account: EmulatedAccount, tmp_path: Path
) -> None:
    calls = len(aws.journal())
    with pytest.raises(UnsupportedInputError):
        account.create(request(cidrBlock="10.0.0.0/16", unsupported=1), tmp_path, check_line)
    assert len(aws.journal()) == calls


def test_unsupported_function_raises_an_error(account: EmulatedAccount) -> None:
    with pytest.raises(UnsupportedTypeError, match="aws:ec2/getInstance:getInstance"):
        account.invoke("aws:ec2/getInstance:getInstance", {})


def test_error_of_the_api_names_resource_operation_and_message(account: EmulatedAccount, tmp_path: Path) -> None:
    expected = request("aws:ec2/subnet:Subnet", vpcId="vpc-00000000", cidrBlock="10.0.0.0/17")
    with pytest.raises(
        RequestFailedError, match=r"aws:ec2/subnet:Subnet example: CreateSubnet: InvalidVpcID.NotFound: .*vpc-00000000"
    ):
        account.create(expected, tmp_path, check_line)


def test_up_with_an_unsupported_input_fails_and_can_be_destroyed(
    aws: EmulatedAws, account: EmulatedAccount, tree: Path
) -> None:
    network = tree / "infra/components/vpc.py"
    network.write_text(network.read_text().replace('connectivity_type="public",', 'private_ip="10.42.128.9",'))
    before = {(resource.service, resource.kind, resource.id) for resource in aws.list_resources()}
    with pytest.raises(UpError, match=r"aws:ec2/natGateway:NatGateway network-nat.*privateIp") as failed:
        Deploy(tree)("broken", account, "local")
    run = failed.value.deployment
    assert run.resource("aws:ec2/vpc:Vpc", "network-vpc").exists
    assert not run.resource("aws:ec2/natGateway:NatGateway", "network-nat").exists
    destroy(run)
    remaining = {(resource.service, resource.kind, resource.id) for resource in aws.list_resources()} - before
    assert {kind for _, kind, _ in remaining} <= {"bucket", "key"}


def test_up_fails_with_the_message_of_the_api(aws: EmulatedAws, account: EmulatedAccount, tree: Path) -> None:
    security = tree / "infra/components/security.py"
    security.write_text(security.read_text().replace('cidr_ipv4="0.0.0.0/0"', 'cidr_ipv4="300.0.0.0/0"'))
    with pytest.raises(
        UpError, match=r"SecurityGroupEgressRule security-(nodes|head)-to-internet: AuthorizeSecurityGroupEgress: "
    ) as failed:
        Deploy(tree)("refused", account, "local")
    destroy(failed.value.deployment)


def test_failed_destroy_reports_remaining_resources_and_can_be_repeated(
    aws: EmulatedAws, account: EmulatedAccount, deploy: Deploy
) -> None:
    run = deploy("blocked", account, "local")
    ec2 = boto3.client("ec2")
    subnet = run.resource("aws:ec2/subnet:Subnet", "network-private").id
    interface = ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    with pytest.raises(DestroyError, match=r"not deleted: .*Subnet network-private") as failed:
        destroy(run)
    names = {(resource.type.rpartition(":")[2], resource.name) for resource in failed.value.remaining}
    assert ("Subnet", "network-private") in names
    assert ("Vpc", "network-vpc") in names
    assert not any(kind == "Group" for kind, _ in names)

    ec2.delete_network_interface(NetworkInterfaceId=interface)
    destroy(run)
    assert not [resource for resource in run.existing_resources if not resource.retain_on_delete]


def test_wait_timeout_names_the_condition() -> None:
    with pytest.raises(WaitTimeoutError, match="the gateway is available"):
        wait_until("the gateway is available", lambda: False, 0.01)
