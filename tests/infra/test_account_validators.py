"""Each account validator runs in the program before any resource is registered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from infra.lookups.account import AccountFacts
from infra.validators import account
from rehearsal.adapter import mocks
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.adapter.static_ec2 import (
    RESERVATION,
    SUBNET,
    VPC,
    StaticEc2,
    StaticNetwork,
    StaticSubnet,
    reservation_properties,
)
from tests.infra.conftest import ECR_IMAGE, ROOT, with_container
from tools.stack_files import read_stack_file
from trainyard.config import CONFIG_KEY
from trainyard.config.quotas import OTHER_INTERFACES
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.models.layout import STACK_OF_BUCKET

NAMED = {"reservation": {"id": RESERVATION}}
EXISTING = {"existing": {"vpc_id": VPC, "subnet_id": SUBNET}}
OTHER_VPC = "vpc-0fedcba9876543210"
KEY = "arn:aws:kms:us-east-1:123456789012:key/mine"
S3 = frozenset({"com.amazonaws.us-east-1.s3"})
SESSION = {f"com.amazonaws.us-east-1.{name}" for name in ("ssm", "ssmmessages")}
CONTROL = {f"com.amazonaws.us-east-1.{name}" for name in ("autoscaling", "ec2", "sts")}
INDEX = {"package_index": "https://index.example.com/simple"}
STANDARD, P, SPOT_G = "L-1216C47A", "L-417A185B", "L-3819A6DF"
INTERFACES = "L-DF5E4CA3"


class Example(NamedTuple):
    """Arguments of the static account, changes of the stack, key of the problem, facts in its message."""

    account: Mapping[str, Any]
    changes: Mapping[str, Any]
    key: str
    facts: tuple[str, ...]
    stack: str = "local"


def reserved(**changes: Any) -> dict[str, Any]:
    """An account with a reservation of two c7i.xlarge, with changes."""
    plain = {"InstanceType": "c7i.xlarge", "ReservationType": "default", "TotalInstanceCount": 2}
    return {"reservations": {RESERVATION: reservation_properties(**{**plain, **changes})}}


def network(*, endpoints: frozenset[str] = S3, dns: bool = True, **subnet: Any) -> dict[str, Any]:
    """An account with a VPC of one subnet."""
    existing = StaticNetwork(subnets=(StaticSubnet(id=SUBNET, **subnet),), endpoints=endpoints, dns_hostnames=dns)
    return {"networks": {VPC: existing}}


def later(minutes: float) -> timedelta:
    """A time from the start of the test, which `at_present` converts: the examples exist much earlier."""
    return timedelta(minutes=minutes)


def at_present(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the times of reservations to dates."""
    now, result = datetime.now(UTC), dict(arguments)
    if "reservations" in arguments:
        result["reservations"] = {
            name: {
                key: (now + value).isoformat() if isinstance(value, timedelta) else value for key, value in each.items()
            }
            for name, each in arguments["reservations"].items()
        }
    return result


EXAMPLES: dict[str, list[Example]] = {
    "spot_types_offered": [
        Example(
            {"instance_type_zones": {"c7i.2xlarge": []}},
            {"capacity": {"spot": {"instance_types": ["c7i.2xlarge"]}}},
            "capacity.spot.instance_types",
            ("c7i.2xlarge", "us-east-1a, "),
        ),
    ],
    "zones_offer_instance_types": [
        Example(
            {"instance_type_zones": {"c7i.xlarge": ["us-east-1b", "us-east-1c"]}},
            {"capacity": {"zones": ["us-east-1b", "us-east-1a"]}},
            "capacity.zones",
            ("us-east-1a does not offer c7i.xlarge and t3.medium", "us-east-1b, us-east-1c"),
        ),
        Example(
            {},
            {"capacity": {"zones": ["eu-west-1a"]}},
            "capacity.zones",
            ("'eu-west-1a'", "us-east-1a, "),
        ),
        Example(
            {"instance_type_zones": {"c7i.xlarge": []}},
            {},
            "instance_type",
            ("no Availability Zone", "c7i.xlarge and t3.medium", "other types"),
        ),
        Example(
            {**reserved(), "instance_type_zones": {"t3.medium": ["us-east-1b"]}},
            {"capacity": NAMED},
            "capacity.reservation.id",
            (RESERVATION, "us-east-1a does not offer c7i.xlarge and t3.medium"),
        ),
        Example(
            {"instance_type_zones": {"c7i.xlarge": ["us-east-1b"]}},
            {"network": EXISTING},
            "network.existing.subnet_id",
            (SUBNET, "us-east-1a does not offer c7i.xlarge and t3.medium"),
        ),
    ],
    "held_capacity_in_stack_zones": [
        Example(
            {
                "networks": {VPC: StaticNetwork(subnets=(StaticSubnet(id=SUBNET, availability_zone="us-east-1b"),))},
                "head_subnet": SUBNET,
                "held_capacity": RESERVATION,
            },
            {},
            "capacity.zones",
            ("us-east-1b", f"{RESERVATION} of trainyard reserve is in us-east-1a", "Set [us-east-1a]", "--cancel"),
            "a100-cluster",
        )
    ],
    "zones_match_reservation": [
        Example(
            reserved(),
            {"capacity": {**NAMED, "zones": ["us-east-1b"]}},
            "capacity.zones",
            ("'us-east-1b'", f"{RESERVATION} is in us-east-1a"),
        ),
        Example(
            {**reserved(), **network(availability_zone="us-east-1c")},
            {"capacity": NAMED, "network": EXISTING},
            "network.existing.subnet_id",
            ("is in us-east-1c", f"{RESERVATION} in us-east-1a"),
        ),
    ],
    "reservation_has_configured_type": [
        Example(
            reserved(ReservationType="capacity-block"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("capacity.capacity_block",),
        ),
        Example(
            {"reservations": {RESERVATION: reservation_properties(ReservationType="default")}},
            {},
            "capacity.capacity_block.id",
            ("capacity.reservation",),
            stack="h200-cluster",
        ),
    ],
    "interruptible_matches_reservation": [
        Example(
            reserved(Interruptible=True),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("is interruptible", "capacity.reservation.interruptible: true"),
        ),
        Example(
            reserved(Interruptible=False),
            {"capacity": {"reservation": {"id": RESERVATION, "interruptible": True}}},
            "capacity.reservation.id",
            ("is not interruptible",),
        ),
        Example(
            reserved(Interruptible=True),
            {"capacity": {"spot_above_base": {"base_nodes": 1, "base_reservation": RESERVATION}}},
            "capacity.spot_above_base.base_reservation",
            ("is interruptible",),
        ),
    ],
    "reservation_is_active": [
        Example(reserved(State="expired"), {"capacity": NAMED}, "capacity.reservation.id", ("is expired",)),
        Example(
            reserved(State="scheduled", StartDate="2098-01-01T11:30:00Z"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("is scheduled", "2098-01-01 11:30:00 UTC"),
        ),
        Example(
            reserved(State="assessing", StartDate="2098-01-01T11:30:00Z"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("is assessing", "2098-01-01 11:30:00 UTC"),
        ),
        Example(
            reserved(State="cancelled"),
            {"capacity": {"spot_above_base": {"base_nodes": 1, "base_reservation": RESERVATION}}},
            "capacity.spot_above_base.base_reservation",
            ("is cancelled",),
        ),
        Example(
            {"reservations": {RESERVATION: reservation_properties(State="payment-failed", TotalInstanceCount=0)}},
            {},
            "capacity.capacity_block.id",
            ("is payment-failed", "has released the Capacity Block", "trainyard blocks"),
            stack="h200-cluster",
        ),
    ],
    "reservation_fits_workers": [
        Example(
            reserved(InstanceType="c7i.2xlarge"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("c7i.2xlarge", "workers are c7i.xlarge"),
        ),
        Example(
            reserved(TotalInstanceCount=1),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("1 instances", "2 nodes"),
        ),
    ],
    "reservation_has_available_instances": [
        Example(
            reserved(AvailableInstanceCount=1),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("1 of its 2 instances are available", "2 nodes"),
        ),
    ],
    "reservation_outlasts_run": [
        Example(
            reserved(EndDate=later(61)),
            {"capacity": {"reservation": {"id": RESERVATION, "on_expiry": "refuse"}}},
            "job.time_limit_minutes",
            ("= 60.0", RESERVATION),
        ),
        Example(
            reserved(EndDate=later(39)),
            {"capacity": NAMED},
            "capacity.reservation.id",
            ("launch.startup_timeout_minutes",),
        ),
        Example(
            {"reservations": {RESERVATION: reservation_properties(EndDate=later(60))}},
            {},
            "capacity.capacity_block.id",
            ("launch.startup_timeout_minutes",),
            stack="h200-cluster",
        ),
    ],
    "quotas_sufficient": [
        Example(
            {"quotas": {STANDARD: 9}},
            {},
            "nodes",
            ("= 2", "10 vCPUs", STANDARD, "us-east-1 is 9", "aws service-quotas request-service-quota-increase"),
        ),
        Example({"quotas": {P: 0}}, {}, "nodes", (f"({P}) of this account in us-east-1 is 0",), stack="a100-cluster"),
        Example(
            {"quotas": {SPOT_G: 1}},
            {},
            "nodes",
            (f"All G and VT Spot Instance Requests ({SPOT_G})",),
            stack="spot-cluster",
        ),
        Example(
            {"quotas": {STANDARD: 1}},
            {},
            "head_instance_type",
            ("= 't3.large'", "2 vCPUs"),
            stack="a100-cluster",
        ),
        # Each node has one plain interface and four EFA interfaces.
        Example(
            {"quotas": {INTERFACES: 4 * 5 + OTHER_INTERFACES - 1}},
            {},
            "nodes",
            ("= 4", f"{4 * 5 + OTHER_INTERFACES} network interfaces", INTERFACES, "--service-code vpc"),
            stack="a100-cluster",
        ),
    ],
    "subnet_in_vpc": [
        Example(
            {"networks": {VPC: StaticNetwork(subnets=()), OTHER_VPC: StaticNetwork(endpoints=S3)}},
            {"network": EXISTING},
            "network.existing.subnet_id",
            (SUBNET, f"is in {OTHER_VPC}, not in {VPC}"),
        ),
    ],
    "subnet_has_enough_addresses": [
        Example(
            network(available_ip_count=18),
            {"network": EXISTING},
            "network.existing.subnet_id",
            ("18 free addresses",),
        ),
    ],
    "subnet_reaches_aws": [
        Example(
            network(routes={"0.0.0.0/0": "igw-0123456789abcdef0"}),
            {"network": EXISTING},
            "network.existing.subnet_id",
            ("internet gateway",),
        ),
        Example(
            network(routes={}, endpoints=S3 | SESSION),
            {"network": EXISTING, "node": {"provisioning": "skip"}},
            "network.existing.subnet_id",
            ("no endpoint for autoscaling, ec2, sts.",),
        ),
        Example(
            network(routes={}, endpoints=S3 | SESSION | CONTROL),
            {"network": EXISTING, "node": INDEX, "job": with_container(ECR_IMAGE)},
            "network.existing.subnet_id",
            ("no endpoint for ecr.api, ecr.dkr.",),
        ),
        Example(
            network(endpoints=frozenset()),
            {"network": EXISTING},
            "network.existing.subnet_id",
            ("gateway endpoint for S3", f"aws ec2 create-vpc-endpoint --vpc-id {VPC}"),
        ),
    ],
    "software_reachable_in_subnet": [
        Example(
            network(routes={}, endpoints=S3 | SESSION | CONTROL),
            {"network": EXISTING},
            "network.existing.subnet_id",
            ("no default route", "package index"),
        ),
    ],
    "vpc_has_dns": [
        Example(network(dns=False), {"network": EXISTING}, "network.existing.vpc_id", (VPC, "DNS")),
    ],
    "data_in_stack_region": [
        Example(
            {"bucket_regions": {"mine": "eu-west-1"}},
            {"storage": {"bucket": "mine"}},
            "storage.bucket",
            ("= 'mine'", "is in eu-west-1, and the stack in us-east-1"),
        ),
        Example(
            {"bucket_regions": {"logs": "eu-west-1"}},
            {"storage": {"access_log_bucket": "logs"}},
            "storage.access_log_bucket",
            ("= 'logs'", "is in eu-west-1, and the stack in us-east-1"),
        ),
        Example(
            {},
            {"storage": {"kms_key": KEY.replace("us-east-1", "eu-west-1")}},
            "storage.kms_key",
            ("is in eu-west-1, and the stack in us-east-1",),
        ),
    ],
    "subnet_assigns_no_public_ips": [
        Example(
            network(map_public_ip_on_launch=True),
            {"network": EXISTING},
            "network.existing.subnet_id",
            ("public IP addresses",),
        )
    ],
    "subnet_outside_docker_bridge": [
        Example(
            network(cidr="172.17.4.0/22"),
            {"network": EXISTING},
            "network.existing.subnet_id",
            ("172.17.4.0/22 overlaps 172.17.0.0/16",),
        )
    ],
    "key_allows_auto_scaling": [
        Example(
            {"key_policy": {"Statement": [{"Principal": {"AWS": "arn:aws:iam::123456789012:root"}}]}},
            {"storage": {"kms_key": KEY}},
            "storage.kms_key",
            ("AWSServiceRoleForAutoScaling",),
        )
    ],
    "image_reachable": [
        Example(
            {},
            {
                "network": {"nat_gateway": False},
                "node": INDEX,
                "job": with_container(ECR_IMAGE.replace("us-east", "us-west")),
            },
            "job.container",
            ("is not in ECR of us-east-1",),
        ),
        Example(
            network(routes={}, endpoints=S3 | SESSION | CONTROL),
            {"network": EXISTING, "node": INDEX, "job": with_container("nvcr.io/nvidia/pytorch:26.10-py3")},
            "job.container",
            ("'nvcr.io/nvidia/pytorch:26.10-py3'", "is not in ECR of us-east-1"),
        ),
    ],
    "data_bucket_of_one_stack": [
        Example(
            {"objects": {STACK_OF_BUCKET: "other/local"}},
            {"storage": {"bucket": "mine"}},
            "storage.bucket",
            ("= 'mine'", "it belongs to stack other/local", STACK_OF_BUCKET),
        ),
    ],
    "key_enabled": [
        Example({"key_states": {KEY: state}}, {"storage": {"kms_key": KEY}}, "storage.kms_key", (KEY, state))
        for state in ("PendingDeletion", "Disabled")
    ],
    "boundary_in_account": [
        Example({}, {"identity": {"permissions_boundary": boundary}}, "identity.permissions_boundary", (boundary,))
        for boundary in ("arn:aws:iam::999999999999:policy/bound", "arn:aws-cn:iam::aws:policy/AdministratorAccess")
    ],
}
# Resources that do not exist: arguments of the account, changes of the stack, key and fact of the problem.
MISSING: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"reservations": {}}, {"capacity": NAMED}, "capacity.reservation.id", RESERVATION),
    ({"networks": {}}, {"network": EXISTING}, "network.existing.vpc_id", VPC),
    ({"networks": {VPC: StaticNetwork(subnets=())}}, {"network": EXISTING}, "network.existing.subnet_id", SUBNET),
    ({"bucket_regions": {}}, {"storage": {"bucket": "mine"}}, "storage.bucket", "reading S3"),
    ({"bucket_regions": {}}, {"storage": {"access_log_bucket": "logs"}}, "storage.access_log_bucket", "reading S3"),
    ({"key_states": {}}, {"storage": {"kms_key": KEY}}, "storage.kms_key", "reading KMS"),
]
CASES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]
each_example = pytest.mark.parametrize(
    ("name", "example"), CASES, ids=[f"{name}-{each.key}-{number}" for number, (name, each) in enumerate(CASES)]
)
each_validator = pytest.mark.parametrize("name", [each.__name__ for each in account.VALIDATORS])


def refused(arguments: Mapping[str, Any], changes: Mapping[str, Any], stack: str = "local") -> list[Problem]:
    """Return the problems with which the program ends before it registers a resource."""
    config = read_stack_file(stack)
    config["trainyard:cluster"] |= changes
    started: list[Deployment] = []
    with pytest.raises(InputError) as caught:
        mocks.up(config, stack, ROOT, account=StaticAccount(**at_present(arguments)), on_start=started.append)
    assert started[0].resources == {}
    return caught.value.problems


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Patches of `infra` apply to the program, which otherwise imports its modules again."""
    monkeypatch.setattr(mocks, "_fresh_modules", lambda root: nullcontext())
    return monkeypatch


def test_every_validator_has_examples() -> None:
    assert sorted(EXAMPLES) == sorted(each.__name__ for each in account.VALIDATORS)


@each_example
def test_validator_reports_its_example_before_resources_are_registered(name: str, example: Example) -> None:
    problems = refused(example.account, example.changes, example.stack)
    (problem,) = [each for each in problems if each.code == name]
    assert problem.key == f"{CONFIG_KEY}.{example.key}"
    assert [fact for fact in example.facts if fact not in str(problem)] == []
    assert len({str(each) for each in problems}) == len(problems)


@each_example
def test_problem_has_a_one_line_reason_and_fix(name: str, example: Example) -> None:
    (problem,) = [each for each in refused(example.account, example.changes, example.stack) if each.code == name]
    for part in (problem.reason, problem.fix):
        assert part.strip() == part != ""
        assert "\n" not in part
    assert problem.fix[0].isupper()


@each_validator
def test_validator_runs_in_the_program(name: str, patched: pytest.MonkeyPatch) -> None:
    def always(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
        yield Problem(name, None, "always", "None", "")

    replaced = tuple(always if each.__name__ == name else each for each in account.VALIDATORS)
    patched.setattr(account, "VALIDATORS", replaced)
    assert [problem.key for problem in refused({}, {})] == [name]


@pytest.mark.parametrize(("arguments", "changes", "key", "fact"), MISSING, ids=[key for _, _, key, _ in MISSING])
def test_missing_resource_is_reported(arguments: dict[str, Any], changes: dict[str, Any], key: str, fact: str) -> None:
    (problem,) = refused(arguments, changes)
    assert (problem.key, problem.code) == (f"{CONFIG_KEY}.{key}", "lookup_failed")
    assert fact in str(problem)


def test_all_problems_of_the_account_are_reported_at_once() -> None:
    arguments = {"reservations": {}, "networks": {}, "bucket_regions": {"mine": "eu-west-1"}, "quotas": {STANDARD: 1}}
    changes = {"capacity": NAMED, "network": EXISTING, "storage": {"bucket": "mine"}}
    keys = {problem.key.removeprefix(f"{CONFIG_KEY}.") for problem in refused(arguments, changes)}
    assert keys == {"capacity.reservation.id", "network.existing.vpc_id", "storage.bucket", "nodes"}


@pytest.mark.parametrize(
    ("properties", "fact"),
    [
        ({"EndDate": later(200)}, "ends in"),
        ({"EndDate": later(40)}, "startup_timeout"),
        ({"State": "expired"}, "expired"),
    ],
)
def test_time_dependent_problems_of_an_existing_cluster_are_warnings(
    changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture, properties: dict[str, Any], fact: str
) -> None:
    """An expired reservation must not block updates (aws-parallelcluster issue 6870)."""
    arguments = at_present(reserved(**properties))
    capacity = {"reservation": {"id": RESERVATION, "on_expiry": "refuse"}}
    job = {**read_stack_file("local")["trainyard:cluster"]["job"], "time_limit_minutes": 600}
    with pytest.raises(InputError, match=fact):
        changed(account=arguments, capacity=capacity, job=job)
    caplog.clear()
    run = changed(account={**arguments, "cluster_exists": True}, capacity=capacity, job=job)
    assert run.exports["launch"] == ""
    assert any(fact in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_unreadable_quota_is_a_warning(
    changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, arguments: Mapping[str, Any]) -> Any:
        raise RequestFailedError("AccessDeniedException: not authorized to perform servicequotas:GetServiceQuota")

    monkeypatch.setattr(StaticEc2, "quota", refuse)
    assert changed().exports["launch"] == ""
    assert any("is not validated: " in record.getMessage() for record in caplog.records)


def test_local_zones_are_not_used(changed: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch) -> None:
    zones = ["us-east-1-bos-1a", "us-east-1b", "us-east-1c"]
    monkeypatch.setattr(StaticAccount, "_zones", property(lambda self: zones))
    assert changed().resource("aws:ec2/subnet:Subnet", "network-private").inputs["availabilityZone"] == "us-east-1b"
