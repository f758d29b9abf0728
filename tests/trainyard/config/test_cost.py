"""Adding up what a cluster costs."""

import pytest

from trainyard.config.cost import Item, capped, hourly
from trainyard.config.prices import per_hour, prices

ITEMS = [
    Item(what="p4d.24xlarge", count=4, usd_per_hour=20.0),
    Item(what="t3.large", count=1, usd_per_hour=0.1),
    Item(what="FSx for Lustre, GiB", count=1200, usd_per_hour=0.0003),
]


def test_an_hour_costs_each_part_as_often_as_it_is_there() -> None:
    assert [item.hourly for item in ITEMS] == pytest.approx([80.0, 0.1, 0.36])
    assert hourly(ITEMS) == pytest.approx(80.46)


def test_a_deadline_caps_the_total() -> None:
    assert capped(ITEMS, minutes=90) == pytest.approx(1.5 * 80.46)


def test_nothing_costs_nothing() -> None:
    assert (hourly([]), capped([], minutes=60)) == (0, 0)


def test_a_month_s_price_is_spread_over_its_hours() -> None:
    assert per_hour(730) == 1


def test_file_systems_are_priced_by_deployment_and_throughput() -> None:
    lustre = prices().fsx_lustre_gb_month
    assert set(lustre["PERSISTENT_2"]) == {125, 250, 500, 1000}  # what FSx takes, and so the settings
    assert list(lustre["PERSISTENT_2"].values()) == sorted(lustre["PERSISTENT_2"].values())
    assert lustre["SCRATCH_2"][200] < lustre["PERSISTENT_2"][125]
