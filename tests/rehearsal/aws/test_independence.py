"""The emulated account does not use the project's tables: an error in one of them appears as a difference."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import rehearsal.aws
from rehearsal.aws.ec2.reference import Market, find_quota, load_reference
from rehearsal.aws.faults import Quota
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed
from rehearsal.seed import quota_codes
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import launch, refused, reserve, terminate_all
from trainyard.config import quotas
from trainyard.config.catalog import InstanceType, NetworkCards, catalog
from trainyard.config.loader import load_settings

P5, G_QUOTA = "p5.48xlarge", quotas._QUOTAS_BY_PREFIX["g"]


@pytest.fixture(autouse=True)
def _remove_faults_and_instances(aws: EmulatedAws, client: Client) -> Iterator[None]:
    yield
    aws.clear_faults()
    terminate_all(aws, client)


def catalog_entry(name: str) -> InstanceType:
    entry = catalog().get(name)
    assert entry is not None
    return entry


def check_quotas_of_the_account(
    aws: EmulatedAws, client: Client, network: Network, instance_type: str, market: Market
) -> None:
    """Assert that the account applies the quota of trainyard.config.quotas to a launch."""
    quota = quotas.quota_of(catalog_entry(instance_type), market)
    assert quota is not None
    aws.inject(Quota(code=quota.code, vcpus=0))
    options: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}} if market == "spot" else {}
    expected = "MaxSpotInstanceCountExceeded" if market == "spot" else "VcpuLimitExceeded"
    assert refused(lambda: launch(client, network, InstanceType=instance_type, **options)) == expected


def launch_with_catalog_interfaces(client: Client, network: Network, entry: InstanceType) -> None:
    """Launch an instance with the EFA interfaces that trainyard.config.catalog lays out."""
    interfaces = [
        {
            "NetworkCardIndex": interface.card,
            "DeviceIndex": interface.device,
            "InterfaceType": interface.type,
            "SubnetId": network.subnet,
            "Groups": [network.group],
        }
        for interface in entry.interfaces(efa=True)
    ]
    client("ec2").run_instances(
        ImageId=network.image, InstanceType=entry.name, MinCount=1, MaxCount=1, NetworkInterfaces=interfaces
    )


def test_emulated_account_does_not_import_trainyard_config() -> None:
    root = Path(rehearsal.aws.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            assert not [name for name in modules if name.startswith("trainyard.config")], file


@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_catalog_and_account_agree_on_the_quota_of_every_instance_type(market: Market) -> None:
    for entry in catalog().instance_types:
        configured, actual = quotas.quota_of(entry, market), find_quota(entry.name, market)
        assert (configured and (configured.code, configured.name)) == (actual and (actual.code, actual.name)), (
            entry.name
        )


def test_catalog_and_account_agree_on_on_demand_prices() -> None:
    prices = {entry.name: entry.on_demand_usd for entry in catalog().instance_types if entry.on_demand_usd is not None}
    assert prices == load_reference().on_demand_usd


@pytest.mark.parametrize(
    ("instance_type", "market"), [(P5, "on-demand"), ("g6.xlarge", "spot"), ("c7i.xlarge", "spot")]
)
def test_account_applies_the_quota_of_the_catalog(
    aws: EmulatedAws, client: Client, network: Network, instance_type: str, market: Market
) -> None:
    check_quotas_of_the_account(aws, client, network, instance_type, market)


def test_wrong_quota_class_in_the_catalog_fails_the_launch(
    aws: EmulatedAws, client: Client, network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rehearsal's account has only the quotas that the catalog names."""
    job = {"name": "a", "dataset": "d", "train": {}}
    settings = load_settings({"instance_type": P5, "nodes": 1, "root_volume_gib": 150, "job": job}, tmp_path, "x")
    try:
        seed_quotas(aws, quota_codes(settings, bake=False))
        assert launch(client, network, InstanceType=P5)
        monkeypatch.setitem(quotas._QUOTAS_BY_PREFIX, "p5", G_QUOTA)
        seed_quotas(aws, quota_codes(settings, bake=False))
        assert refused(lambda: launch(client, network, InstanceType=P5)) == "VcpuLimitExceeded"
    finally:
        seed_quotas(aws, {quota.code for quota in load_reference().quotas})


def seed_quotas(aws: EmulatedAws, codes: set[str]) -> None:
    """Set all quotas of the account except these to 0."""
    aws.seed(AccountSeed(region="us-east-1", increased_quota_codes=tuple(codes)))


def test_account_accepts_the_interfaces_of_the_catalog(client: Client, network: Network) -> None:
    launch_with_catalog_interfaces(client, network, catalog_entry(P5))


def test_wrong_interface_layout_in_the_catalog_is_refused(client: Client, network: Network) -> None:
    entry = catalog_entry(P5)
    wrong = entry.model_copy(update={"cards": (NetworkCards(count=33, interfaces=2, efa=True),)})
    with pytest.raises(ClientError, match="EFA interface count 33 exceeds the limit"):
        launch_with_catalog_interfaces(client, network, wrong)


def test_instance_types_that_moto_omits_count_against_their_quota(client: Client) -> None:
    for name in load_reference().instance_types:
        quota = find_quota(name, "on-demand")
        assert quota is not None
        assert quota.code == "L-417A185B"
        with pytest.raises(ClientError, match="Unsupported"):  # a known type that is offered in no zone
            reserve(client, 1, InstanceType=name)
