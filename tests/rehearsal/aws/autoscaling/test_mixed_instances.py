"""Auto Scaling groups with a mixed instances policy that is wholly Spot."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.autoscaling.test_launch_instances import describe_group, instances, launched
from tests.rehearsal.aws.conftest import Client

TYPES = ("g6e.16xlarge", "g6e.4xlarge", "g6e.8xlarge")
DISTRIBUTION = {
    "OnDemandBaseCapacity": 0,
    "OnDemandPercentageAboveBaseCapacity": 0,
    "SpotAllocationStrategy": "price-capacity-optimized",
}


@pytest.fixture
def spot_group(group: Callable[..., str], client: Client) -> Callable[..., str]:
    """Return a function that creates an empty Spot group of three instance types; arguments: distribution, data."""

    def make(data: dict[str, Any] | None = None, **distribution: Any) -> str:
        name = group(data)
        policy = {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {"LaunchTemplateId": _template_of(client, name), "Version": "$Latest"},
                "Overrides": [{"InstanceType": each} for each in TYPES],
            },
            "InstancesDistribution": {**DISTRIBUTION, **distribution},
        }
        client("autoscaling").update_auto_scaling_group(AutoScalingGroupName=name, MixedInstancesPolicy=policy)
        return name

    return make


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws) -> Any:
    yield
    aws.clear_faults()


def _template_of(client: Client, group: str) -> str:
    return str(describe_group(client, group)["LaunchTemplate"]["LaunchTemplateId"])


def pools(response: dict[str, Any]) -> dict[str, int]:
    return {pool["InstanceType"]: len(pool["InstanceIds"]) for pool in response["Instances"]}


def limit(aws: EmulatedAws, **limits: int) -> None:
    for size, number in limits.items():
        aws.inject(Capacity(limit=number, instance_type=f"g6e.{size.removeprefix('x')}"))


def test_cheapest_pool_with_capacity_for_all_is_used(client: Client, spot_group: Callable[..., str]) -> None:
    response = launched(client, spot_group(), 2)
    assert (pools(response), response["Errors"]) == ({"g6e.4xlarge": 2}, [])
    ids = response["Instances"][0]["InstanceIds"]
    assert {(each["InstanceType"], each["InstanceLifecycle"]) for each in instances(client, ids)} == {
        ("g6e.4xlarge", "spot")
    }


def test_pool_with_more_capacity_precedes_a_cheaper_pool(
    client: Client, spot_group: Callable[..., str], aws: EmulatedAws
) -> None:
    limit(aws, x4xlarge=1, x16xlarge=2)
    assert pools(launched(client, spot_group(), 3)) == {"g6e.8xlarge": 3}


def test_launch_is_completed_from_other_pools(client: Client, spot_group: Callable[..., str], aws: EmulatedAws) -> None:
    limit(aws, x4xlarge=1, x8xlarge=1, x16xlarge=1)
    name = spot_group()
    response = launched(client, name, 4)
    assert pools(response) == {"g6e.4xlarge": 1, "g6e.8xlarge": 1, "g6e.16xlarge": 1}
    assert {error["InstanceType"]: error["ErrorCode"] for error in response["Errors"]} == dict.fromkeys(
        TYPES, "InsufficientInstanceCapacity"
    )
    assert describe_group(client, name)["DesiredCapacity"] == 3


def test_pool_above_the_maximum_price_is_not_used(client: Client, spot_group: Callable[..., str]) -> None:
    response = launched(client, spot_group(SpotMaxPrice="0.5"), 1)
    assert pools(response) == {}
    assert {error["ErrorCode"] for error in response["Errors"]} == {"SpotMaxPriceTooLow"}


def test_replacement_is_from_the_pools(client: Client, spot_group: Callable[..., str], aws: EmulatedAws) -> None:
    name = spot_group()
    (instance,) = launched(client, name, 1)["Instances"][0]["InstanceIds"]
    limit(aws, x4xlarge=0)
    client("autoscaling").set_instance_health(
        InstanceId=instance, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
    )
    types = {entry["InstanceId"]: entry["InstanceType"] for entry in describe_group(client, name)["Instances"]}
    types.pop(instance, None)
    assert list(types.values()) == ["g6e.8xlarge"]


def test_update_of_other_settings_keeps_the_policy(client: Client, spot_group: Callable[..., str]) -> None:
    name = spot_group()
    client("autoscaling").update_auto_scaling_group(AutoScalingGroupName=name, MaxSize=3)
    policy = describe_group(client, name)["MixedInstancesPolicy"]
    assert [override["InstanceType"] for override in policy["LaunchTemplate"]["Overrides"]] == list(TYPES)


def test_template_that_requests_spot_instances_is_refused(client: Client, spot_group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match=r"InvalidQueryParameter.*InstanceMarketOptions"):
        spot_group({"InstanceMarketOptions": {"MarketType": "spot"}})


def test_launch_instances_requires_a_policy_for_spot(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="launch template that requests Spot Instances"):
        launched(client, group({"InstanceMarketOptions": {"MarketType": "spot"}}), 1)
