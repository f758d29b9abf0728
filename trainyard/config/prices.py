"""List prices of what a cluster has beside its instances (those are in the hardware catalog). Data: prices.json."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.base import Contract

HOURS_PER_MONTH = 730  # by which AWS's own calculator turns a month's price into an hour's

FsxDeployment = Literal["SCRATCH_2", "PERSISTENT_2"]


class Prices(Contract):
    """USD in one region, before tax, discounts and the free tier."""

    dated: str = Field(description="Day of the data, YYYY-MM-DD.")
    region: str = Field(description="Region that the prices are of.")
    sources: tuple[str, ...] = Field(min_length=1, description="Where they are from, one line a kind.")
    nat_gateway_hour: float = Field(gt=0, description="A NAT gateway, USD an hour.")
    interface_endpoint_hour: float = Field(gt=0, description="An interface endpoint in one zone, USD an hour.")
    public_ipv4_hour: float = Field(gt=0, description="A public IPv4 address, USD an hour.")
    gp3_gb_month: float = Field(gt=0, description="A GiB of gp3 volume, USD a month.")
    fsx_lustre_gb_month: dict[FsxDeployment, dict[int, float]] = Field(
        description="Deployment type -> throughput per TiB of storage, MB/s -> a GiB of storage, USD a month."
    )
    kms_key_month: float = Field(gt=0, description="A customer managed key, USD a month.")
    alarm_month: float = Field(gt=0, description="A CloudWatch alarm, USD a month.")


@cache
def prices() -> Prices:
    """The prices as shipped. In another region they are an estimate."""
    return Prices.model_validate_json((Path(__file__).parent / "prices.json").read_text())


def per_hour(usd_a_month: float) -> float:
    """USD an hour of what AWS prices by the month."""
    return usd_a_month / HOURS_PER_MONTH
