"""Which quota an instance type counts against."""

import pytest

from trainyard.config.catalog import InstanceType, catalog
from trainyard.config.quotas import quota_of


def entry_of(name: str) -> InstanceType:
    entry = catalog().get(name)
    assert entry is not None
    return entry


# EC2 developer guide, "Amazon EC2 instance type quotas": names of the codes.
@pytest.mark.parametrize(
    ("name", "on_demand", "spot"),
    [
        ("t3.large", "L-1216C47A", "L-34B43A08"),
        ("m7i.large", "L-1216C47A", "L-34B43A08"),
        ("c7i.4xlarge", "L-1216C47A", "L-34B43A08"),
        ("g4dn.xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("g6e.48xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("p3dn.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p4de.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p5.4xlarge", "L-417A185B", "L-C4BD4855"),
        ("p5en.48xlarge", "L-417A185B", "L-C4BD4855"),
    ],
)
def test_type_counts_against_its_quota(name: str, on_demand: str, spot: str) -> None:
    quotas = [quota_of(entry_of(name), market) for market in ("on-demand", "spot")]
    assert [quota and quota.code for quota in quotas] == [on_demand, spot]


@pytest.mark.parametrize("entry", catalog().instance_types, ids=lambda entry: entry.name)
def test_every_type_has_an_on_demand_quota(entry: InstanceType) -> None:
    assert quota_of(entry, "on-demand") is not None


def test_p6_spot_requests_have_no_published_quota() -> None:
    assert quota_of(entry_of("p6-b200.48xlarge"), "spot") is None
