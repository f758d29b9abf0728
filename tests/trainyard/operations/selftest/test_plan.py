"""The steps of the selftest: settings and maximum cost."""

import pytest

from trainyard.config.cost import usd_per_hour
from trainyard.config.project import PROJECT_ROOT
from trainyard.operations.selftest.plan import maximum_usd, plan


def test_maximum_cost_counts_every_launch_until_its_time_limit() -> None:
    (cpu,) = plan("1")
    hours = sum(map(cpu.minutes, cpu.actions)) / 60
    assert cpu.maximum_usd == pytest.approx(2 * 0.48 + 0.12 * hours, abs=0.01)


def test_spot_and_on_demand_differ_in_capacity_only() -> None:
    on_demand, spot = plan("2")
    assert on_demand.settings.reserves_capacity(on_demand.settings.groups[0])
    assert not spot.settings.reserves_capacity(spot.settings.groups[0])
    assert {**spot.raw_settings, "capacity": on_demand.raw_settings["capacity"]} == on_demand.raw_settings
    assert [step.settings.nodes for step in (on_demand, spot)] == [1, 1]


@pytest.mark.parametrize("number", ["1", "2"])
def test_the_page_has_the_prices_of_the_steps(number: str) -> None:
    page, steps = (PROJECT_ROOT / "docs/first-real-run.md").read_text(), plan(number)
    assert f"selftest --step {number} --region us-east-1    # {usd_per_hour(steps[0].settings):.2f} USD" in page
    assert f"{maximum_usd(steps):.2f} USD for step {number}" in page.replace("\n", " ")
