"""Every rule that only the account can judge fires through the whole program, before anything is registered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from infra.lookups.account import Facts
from infra.validators import account as checks
from rehearsal.adapter import mocks
from rehearsal.adapter.errors import Refused
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.static import StaticAccount
from rehearsal.adapter.static_ec2 import RESERVATION, SUBNET, VPC, StaticEc2, StaticNetwork, StaticSubnet, reservation
from tests.infra.conftest import ECR_IMAGE, ROOT, stack_config, with_container
from trainyard.base import CONFIG_KEY, InputError, Problem
from trainyard.config.settings import StackSettings

NAMED = {"reservation": {"id": RESERVATION}}
THERE = {"existing": {"vpc_id": VPC, "subnet_id": SUBNET}}
OTHER_VPC = "vpc-0fedcba9876543210"
KEY = "arn:aws:kms:us-east-1:123456789012:key/mine"
S3 = frozenset({"com.amazonaws.us-east-1.s3"})
SESSION = {f"com.amazonaws.us-east-1.{name}" for name in ("ssm", "ssmmessages")}
INDEX = {"package_index": "https://index.example.com/simple"}
STANDARD, P, SPOT_G = "L-1216C47A", "L-417A185B", "L-3819A6DF"


class Example(NamedTuple):
    """Arguments of the static account, what is changed in the stack, the key that is told, words of the sentence."""

    account: Mapping[str, Any]
    changes: Mapping[str, Any]
    key: str
    says: str
    stack: str = "local"


def reserved(**changes: Any) -> dict[str, Any]:
    """An account with a reservation of two c7i.xlarge, but for the changes."""
    plain = {"InstanceType": "c7i.xlarge", "ReservationType": "default", "TotalInstanceCount": 2}
    return {"reservations": {RESERVATION: reservation(**{**plain, **changes})}}


def network(*, endpoints: frozenset[str] = S3, dns: bool = True, **subnet: Any) -> dict[str, Any]:
    """An account with a VPC of one subnet."""
    there = StaticNetwork(subnets=(StaticSubnet(id=SUBNET, **subnet),), endpoints=endpoints, dns_hostnames=dns)
    return {"networks": {VPC: there}}


def later(minutes: float) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


EXAMPLES: dict[str, list[Example]] = {
    "zone_offers_the_types": [
        Example(
            {"zones": {"c7i.xlarge": ["us-east-1b", "us-east-1c"]}},
            {"network": {"zone": "us-east-1a"}},
            "network.zone",
            "= 'us-east-1a': does not offer c7i.xlarge and t3.medium. Choose one of us-east-1b, us-east-1c.",
        ),
        Example(
            {},
            {"network": {"zone": "eu-west-1a"}},
            "network.zone",
            "= 'eu-west-1a': is no zone of us-east-1 that the account may use. Choose one of us-east-1a, ",
        ),
        Example(
            {"zones": {"c7i.xlarge": []}},
            {},
            "network.zone",
            "= None: no zone of us-east-1 that the account may use offers c7i.xlarge and t3.medium. Choose other types",
        ),
        Example(
            {**reserved(), "zones": {"t3.medium": ["us-east-1b"]}},
            {"capacity": NAMED},
            "capacity.reservation.id",
            f"= '{RESERVATION}': is in us-east-1a, which does not offer c7i.xlarge and t3.medium. Choose one in us-ea",
        ),
        Example(
            {"zones": {"c7i.xlarge": ["us-east-1b"]}},
            {"network": THERE},
            "network.existing.subnet_id",
            f"= '{SUBNET}': is in us-east-1a, which does not offer c7i.xlarge and t3.medium",
        ),
    ],
    "zone_is_the_reservations": [
        Example(
            reserved(),
            {"capacity": NAMED, "network": {"zone": "us-east-1b"}},
            "network.zone",
            f"= 'us-east-1b': reservation {RESERVATION} is in us-east-1a. Leave it out",
        ),
        Example(
            {**reserved(), **network(zone="us-east-1c")},
            {"capacity": NAMED, "network": THERE},
            "network.existing.subnet_id",
            f"= '{SUBNET}': is in us-east-1c, and reservation {RESERVATION} in us-east-1a. Name a subnet in us-east-1a",
        ),
    ],
    "reservation_is_of_its_kind": [
        Example(
            reserved(ReservationType="capacity-block"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            f"= '{RESERVATION}': is a Capacity Block. Name it under capacity.capacity_block",
        ),
        Example(
            {"reservations": {RESERVATION: reservation(ReservationType="default")}},
            {},
            "capacity.capacity_block.id",
            f"= '{RESERVATION}': is no Capacity Block. Name it under capacity.reservation",
            stack="h200-cluster",
        ),
    ],
    "reservation_can_be_used": [
        Example(reserved(State="expired"), {"capacity": NAMED}, "capacity.reservation.id", "is expired. Name one that"),
        Example(
            reserved(State="scheduled", StartDate="2098-01-01T11:30:00Z"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            "is scheduled, begins at 2098-01-01 11:30 UTC. Come back then",
        ),
        Example(
            reserved(State="cancelled"),
            {"capacity": {"spot_above_base": {"base_nodes": 1, "base_reservation": RESERVATION}}},
            "capacity.spot_above_base.base_reservation",
            "is cancelled. Name one that is active",
        ),
    ],
    "reservation_suits": [
        Example(
            reserved(InstanceType="c7i.2xlarge"),
            {"capacity": NAMED},
            "capacity.reservation.id",
            "is of c7i.2xlarge, and the workers are c7i.xlarge. Set instance_type to c7i.2xlarge",
        ),
        Example(
            reserved(TotalInstanceCount=1),
            {"capacity": NAMED},
            "capacity.reservation.id",
            "holds instances for 1 of the 2 nodes that are launched into it. Set nodes so that 1 suffice",
        ),
    ],
    "reservation_lasts": [
        Example(
            reserved(EndDate=later(61)),
            {"capacity": {"reservation": {"id": RESERVATION, "at_its_end": "refuse"}}},
            "job.time_limit_minutes",
            f"= 60.0: the instances of {RESERVATION} end in ",  # 51 minutes, less what the tests have run by then
        ),
        Example(
            reserved(EndDate=later(39)),
            {"capacity": NAMED},
            "capacity.reservation.id",
            "before a launch may be done (launch.bring_up_minutes)",
        ),
        Example(
            {"reservations": {RESERVATION: reservation(EndDate=later(60))}},
            {},
            "capacity.capacity_block.id",
            "before a launch may be done (launch.bring_up_minutes)",
            stack="h200-cluster",
        ),
    ],
    "quotas_suffice": [
        Example(
            {"quotas": {STANDARD: 9}},
            {},
            "nodes",
            "= 2: takes 10 vCPUs, and the quota Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances "
            f"({STANDARD}) of this account in us-east-1 is 9. Ask for more: aws service-quotas request-service",
        ),
        Example({"quotas": {P: 0}}, {}, "nodes", f"({P}) of this account in us-east-1 is 0", stack="a100-cluster"),
        Example(
            {"quotas": {SPOT_G: 1}},
            {},
            "nodes",
            f"All G and VT Spot Instance Requests ({SPOT_G})",
            stack="spot-cluster",
        ),
        Example(
            {"quotas": {STANDARD: 1}},
            {},
            "head_instance_type",
            "= 't3.large': takes 2 vCPUs",
            stack="a100-cluster",
        ),
    ],
    "subnet_is_of_the_vpc": [
        Example(
            {"networks": {VPC: StaticNetwork(subnets=()), OTHER_VPC: StaticNetwork(endpoints=S3)}},
            {"network": THERE},
            "network.existing.subnet_id",
            f"= '{SUBNET}': is in {OTHER_VPC}, not in {VPC}. Name a subnet of that VPC",
        ),
    ],
    "subnet_has_room": [
        Example(
            network(free=18),
            {"network": THERE},
            "network.existing.subnet_id",
            "has 18 free addresses, the cluster needs",
        ),
    ],
    "subnet_reaches_aws": [
        Example(
            network(routes={"0.0.0.0/0": "igw-0123456789abcdef0"}),
            {"network": THERE},
            "network.existing.subnet_id",
            "its default route is an internet gateway, and nodes have no public address",
        ),
        Example(
            network(routes={}, endpoints=S3 | SESSION),
            {"network": THERE, "node": {"system": "as-is"}},
            "network.existing.subnet_id",
            "has no default route, and its VPC no endpoint for autoscaling. Add a NAT gateway, or interface endpoints",
        ),
        Example(
            network(routes={}, endpoints=S3 | SESSION | {"com.amazonaws.us-east-1.autoscaling"}),
            {"network": THERE, "node": INDEX, "job": with_container(ECR_IMAGE)},
            "network.existing.subnet_id",
            "has no default route, and its VPC no endpoint for ecr.api, ecr.dkr. Add a NAT gateway, or interface",
        ),
        Example(
            network(endpoints=frozenset()),
            {"network": THERE},
            "network.existing.subnet_id",
            f"no gateway endpoint for S3: data and checkpoints would pay NAT by the gigabyte. Add one, which is free: "
            f"aws ec2 create-vpc-endpoint --vpc-id {VPC}",
        ),
    ],
    "closed_subnet_brings_the_software": [
        Example(
            network(routes={}, endpoints=S3 | SESSION | {"com.amazonaws.us-east-1.autoscaling"}),
            {"network": THERE},
            "network.existing.subnet_id",
            "has no default route, so nodes reach no package index, and node.system is configure",
        ),
    ],
    "vpc_resolves_names": [
        Example(
            network(dns=False),
            {"network": THERE},
            "network.existing.vpc_id",
            f"= '{VPC}': DNS support or DNS hostnames are off in it",
        ),
    ],
    "data_is_in_the_region": [
        Example(
            {"buckets": {"mine": "eu-west-1"}},
            {"storage": {"bucket": "mine"}},
            "storage.bucket",
            "= 'mine': is in eu-west-1, and the stack in us-east-1. Name one in us-east-1, or set aws:region to",
        ),
        Example(
            {},
            {"storage": {"kms_key": KEY.replace("us-east-1", "eu-west-1")}},
            "storage.kms_key",
            ":key/mine': is in eu-west-1, and the stack in us-east-1",
        ),
    ],
    "subnet_gives_no_public_addresses": [
        Example(
            network(public=True),
            {"network": THERE},
            "network.existing.subnet_id",
            "gives every instance a public address, and EC2 refuses that to nodes with several interfaces",
        )
    ],
    "subnet_is_not_dockers": [
        Example(
            network(cidr="172.17.4.0/22"),
            {"network": THERE},
            "network.existing.subnet_id",
            "its range 172.17.4.0/22 overlaps 172.17.0.0/16, the bridge of Docker",
        )
    ],
    "key_admits_auto_scaling": [
        Example(
            {"key_policy": {"Statement": [{"Principal": {"AWS": "arn:aws:iam::123456789012:root"}}]}},
            {"storage": {"kms_key": KEY}},
            "storage.kms_key",
            "its policy does not name AWSServiceRoleForAutoScaling, so no node with a root volume under it would start",
        )
    ],
    "image_can_be_reached": [
        Example(
            {},
            {"network": {"nat": False}, "node": INDEX, "job": with_container(ECR_IMAGE.replace("us-east", "us-west"))},
            "job.container",
            "is not in ECR of us-east-1, and nodes without a way out reach no other registry. Copy it into an ECR",
        ),
        Example(
            network(routes={}, endpoints=S3 | SESSION | {"com.amazonaws.us-east-1.autoscaling"}),
            {"network": THERE, "node": INDEX, "job": with_container("nvcr.io/nvidia/pytorch:26.10-py3")},
            "job.container",
            "= 'nvcr.io/nvidia/pytorch:26.10-py3': is not in ECR of us-east-1",
        ),
    ],
    "key_can_be_used": [
        Example(
            {"keys": {KEY: state}},
            {"storage": {"kms_key": KEY}},
            "storage.kms_key",
            f"= '{KEY}': its state is {state}, so nothing under it can be written or read",
        )
        for state in ("PendingDeletion", "Disabled")
    ],
    "boundary_is_of_the_account": [
        Example(
            {},
            {"identity": {"permissions_boundary": boundary}},
            "identity.permissions_boundary",
            f"= '{boundary}': is not of account 123456789012 in aws, and the boundary of its roles must be",
        )
        for boundary in ("arn:aws:iam::999999999999:policy/bound", "arn:aws-cn:iam::aws:policy/AdministratorAccess")
    ],
}
# What the stack names and the account does not give: arguments of the account, changes, key, words of the sentence.
ABSENT: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"reservations": {}}, {"capacity": NAMED}, "capacity.reservation.id", f"= '{RESERVATION}': AWS does not give it:"),
    ({"networks": {}}, {"network": THERE}, "network.existing.vpc_id", f"= '{VPC}': AWS does not give it: no matching"),
    ({"networks": {VPC: StaticNetwork(subnets=())}}, {"network": THERE}, "network.existing.subnet_id", "no matching"),
    ({"buckets": {}}, {"storage": {"bucket": "mine"}}, "storage.bucket", "= 'mine': AWS does not give it: reading S3"),
    ({"keys": {}}, {"storage": {"kms_key": KEY}}, "storage.kms_key", f"= '{KEY}': AWS does not give it: reading KMS"),
]
CASES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]
each_example = pytest.mark.parametrize(
    ("name", "example"), CASES, ids=[f"{name}-{one.key}-{number}" for number, (name, one) in enumerate(CASES)]
)
each_check = pytest.mark.parametrize("name", [check.__name__ for check in checks.CHECKS])


def refused(account: Mapping[str, Any], changes: Mapping[str, Any], stack: str = "local") -> list[Problem]:
    """The problems that end the program, which has registered nothing."""
    config = stack_config(stack)
    config["trainyard:cluster"] |= changes
    begun: list[Deployment] = []
    with pytest.raises(InputError) as caught:
        mocks.up(config, stack, ROOT, account=StaticAccount(**account), begun=begun.append)
    assert begun[0].resources == {}
    return caught.value.problems


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What is patched in `infra` reaches the program, which else loads its modules anew."""
    monkeypatch.setattr(mocks, "_modules_of", lambda root: nullcontext())
    return monkeypatch


def test_every_check_has_examples_and_a_name_of_its_own() -> None:
    assert sorted(EXAMPLES) == sorted(check.__name__ for check in checks.CHECKS)
    assert all(EXAMPLES.values())


@each_example
def test_example_is_told_and_nothing_is_registered(name: str, example: Example) -> None:
    problems = refused(example.account, example.changes, example.stack)
    (problem,) = [one for one in problems if example.says in str(one)]
    assert problem.key == f"{CONFIG_KEY}.{example.key}"
    assert len({str(one) for one in problems}) == len(problems)


@each_example
def test_its_check_tells_it_by_itself(name: str, example: Example, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(checks, "CHECKS", tuple(check for check in checks.CHECKS if check.__name__ == name))
    (problem,) = refused(example.account, example.changes, example.stack)
    assert example.says in str(problem)
    for part in (problem.why, problem.fix):
        assert part.strip() == part != ""
        assert "\n" not in part
    assert problem.fix[0].isupper()


@each_check
def test_check_is_asked(name: str, patched: pytest.MonkeyPatch) -> None:
    def sentinel(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
        yield Problem(key=name, value=None, why="sentinel", fix="none")

    patched.setattr(checks, "CHECKS", tuple(sentinel if check.__name__ == name else check for check in checks.CHECKS))
    assert [problem.key for problem in refused({}, {})] == [name]


@pytest.mark.parametrize(("account", "changes", "key", "says"), ABSENT, ids=[key for _, _, key, _ in ABSENT])
def test_what_is_not_there_is_told(account: dict[str, Any], changes: dict[str, Any], key: str, says: str) -> None:
    (problem,) = refused(account, changes)
    assert problem.key == f"{CONFIG_KEY}.{key}"
    assert says in str(problem)


def test_all_that_the_account_refuses_is_told_at_once() -> None:
    account = {"reservations": {}, "networks": {}, "buckets": {"mine": "eu-west-1"}, "quotas": {STANDARD: 1}}
    changes = {"capacity": NAMED, "network": THERE, "storage": {"bucket": "mine"}}
    keys = {problem.key.removeprefix(f"{CONFIG_KEY}.") for problem in refused(account, changes)}
    assert keys == {"capacity.reservation.id", "network.existing.vpc_id", "storage.bucket", "nodes"}


def test_what_time_brings_about_does_not_bar_the_next_up_of_a_cluster_that_stands(
    changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture
) -> None:
    """An expired reservation that blocked every update has been a peer's bug for years."""
    for given, told in (
        ({"EndDate": later(200)}, "end in"),
        ({"EndDate": later(40)}, "before a launch may be done"),
        ({"State": "expired"}, "is expired"),
    ):
        account = {
            "reservations": {RESERVATION: reservation(InstanceType="c7i.xlarge", ReservationType="default", **given)}
        }
        capacity = {"reservation": {"id": RESERVATION, "at_its_end": "refuse"}}
        limits = {**stack_config("local")["trainyard:cluster"]["job"], "time_limit_minutes": 600}
        with pytest.raises(InputError, match=told):
            changed(account=account, capacity=capacity, job=limits)
        caplog.clear()
        assert changed(account={**account, "stands": True}, capacity=capacity, job=limits).exports["launch"] == ""
        assert any(told in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_quota_that_may_not_be_looked_at_is_told_and_bars_nothing(
    changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, given: Mapping[str, Any]) -> Any:
        raise Refused("AccessDeniedException: not authorized to perform servicequotas:GetServiceQuota")

    monkeypatch.setattr(StaticEc2, "quota", refuse)
    assert changed().exports["launch"] == ""
    assert any("is not known: " in record.getMessage() for record in caplog.records)


def test_local_zones_are_no_zones_for_a_cluster(
    changed: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    zones = ["us-east-1-bos-1a", "us-east-1b", "us-east-1c"]
    monkeypatch.setattr(StaticAccount, "_zones", property(lambda self: zones))
    assert changed().one("aws:ec2/subnet:Subnet", "private").inputs["availabilityZone"] == "us-east-1b"
