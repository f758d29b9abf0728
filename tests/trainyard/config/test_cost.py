"""The cost estimate of a stack."""

from pathlib import Path

import pytest
import yaml

from tests.trainyard.config.stacks import changed
from trainyard.config import CONFIG_KEY
from trainyard.config.cost import CostItem, base_usd_per_hour, cost_items, max_run_usd, usd_per_hour
from trainyard.config.loader import load_settings
from trainyard.config.prices import monthly_to_hourly, prices
from trainyard.config.settings import StackSettings

ROOT = Path(__file__).parents[3]
LOCAL = ROOT / "stacks/Pulumi.local.yaml"


@pytest.fixture
def settings(tmp_path: Path) -> StackSettings:
    return load_settings(changed({"job.time_limit_minutes": 90}), tmp_path, "stacks/x.yaml")


def test_item_costs_count_times_unit_price() -> None:
    assert CostItem(name="p4d.24xlarge", count=4, unit_usd_per_hour=20.0).usd_per_hour == pytest.approx(80.0)


def test_cluster_costs_the_sum_of_its_items(settings: StackSettings) -> None:
    total = sum(item.usd_per_hour for item in cost_items(settings))
    assert usd_per_hour(settings) == pytest.approx(total, abs=0.005)


def test_items_of_the_local_stack_are_complete() -> None:
    settings = load_settings(yaml.safe_load(LOCAL.read_text())["config"][CONFIG_KEY], ROOT, LOCAL.name)
    assert [item.name for item in cost_items(settings)] == [
        "workers, c7i.xlarge (on-demand)",
        "root volumes of workers, GiB of gp3",
        "head, t3.medium",
        "root volumes of the head, GiB of gp3",
        "interface endpoints",
        "NAT gateway and its address",
        "CloudWatch alarms",
        "KMS key",
    ]
    assert usd_per_hour(settings) == 0.48  # AWS's prices of 2026 in us-east-1, added by hand


def test_cluster_without_workers_costs_the_rest(settings: StackSettings) -> None:
    workers = sum(item.usd_per_hour for item in cost_items(settings) if "workers" in item.name)
    assert base_usd_per_hour(settings) == pytest.approx(usd_per_hour(settings) - workers, abs=0.01)


def test_throughput_of_gpu_nodes_is_billed_above_the_included_one(tmp_path: Path) -> None:
    settings = load_settings(changed({"instance_type": "g6e.12xlarge", "nodes": 2}), tmp_path, "stacks/x.yaml")
    (item,) = [item for item in cost_items(settings) if item.name.startswith("throughput")]
    assert item.count == 2 * 375
    assert item.usd_per_hour == pytest.approx(2 * 15 / 730)


def test_run_costs_the_cluster_until_the_time_limit(settings: StackSettings) -> None:
    total = sum(item.usd_per_hour for item in cost_items(settings))
    assert max_run_usd(settings) == pytest.approx(1.5 * total, abs=0.005)


def test_monthly_price_is_divided_by_the_hours_of_a_month() -> None:
    assert monthly_to_hourly(730) == 1


def test_file_systems_are_priced_by_deployment_type_and_throughput() -> None:
    lustre = prices().fsx_lustre_gb_month
    assert set(lustre["PERSISTENT_2"]) == {125, 250, 500, 1000}  # the values of fsx.throughput_mbps_per_tib
    assert list(lustre["PERSISTENT_2"].values()) == sorted(lustre["PERSISTENT_2"].values())
    assert lustre["SCRATCH_2"][200] < lustre["PERSISTENT_2"][125]
