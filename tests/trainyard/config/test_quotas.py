"""Which quota an instance type counts against."""

import pytest

from trainyard.config.catalog import InstanceType, catalog
from trainyard.config.quotas import quota_of


def entry_of(name: str) -> InstanceType:
    found = catalog().get(name)
    assert found is not None
    return found


# EC2 developer guide, "Amazon EC2 instance type quotas": what the code stands for.
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
def test_a_type_counts_against_its_class(name: str, on_demand: str, spot: str) -> None:
    found = [quota_of(entry_of(name), market) for market in ("on-demand", "spot")]
    assert [quota and quota.code for quota in found] == [on_demand, spot]


@pytest.mark.parametrize("entry", catalog().instance_types, ids=lambda entry: entry.name)
def test_every_type_of_the_catalog_has_a_class(entry: InstanceType) -> None:
    assert quota_of(entry, "on-demand") is not None


def test_aws_names_no_quota_of_p6_spot_requests() -> None:
    assert quota_of(entry_of("p6-b200.48xlarge"), "spot") is None
