"""List prices of AWS resources other than instances. Data: `prices.json`."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel

HOURS_PER_MONTH = 730  # as in the AWS Pricing Calculator

FsxDeployment = Literal["SCRATCH_2", "PERSISTENT_2"]


class Prices(StrictModel):
    """USD in one region, before tax, discounts and the free tier."""

    dated: str = Field(description="Day of the data, YYYY-MM-DD.")
    region: str = Field(description="Region of the prices.")
    sources: tuple[str, ...] = Field(min_length=1, description="Sources of the prices, one line for each kind.")
    nat_gateway_hour: float = Field(gt=0, description="A NAT gateway, USD an hour.")
    interface_endpoint_hour: float = Field(gt=0, description="An interface endpoint in one zone, USD an hour.")
    public_ipv4_hour: float = Field(gt=0, description="A public IPv4 address, USD an hour.")
    inter_region_gb: float = Field(gt=0, description="Transfer of a GB from S3 to another region, USD.")
    nat_gateway_gb: float = Field(gt=0, description="A GB that a NAT gateway processes, USD.")
    gp3_gb_month: float = Field(gt=0, description="A GiB of gp3 volume, USD a month.")
    gp3_throughput_month: float = Field(
        gt=0, description="A MiB/s of gp3 throughput above the included 125, USD a month."
    )
    fsx_lustre_gb_month: dict[FsxDeployment, dict[int, float]] = Field(
        description="Deployment type -> throughput per TiB of storage, MB/s -> a GiB of storage, USD a month."
    )
    kms_key_month: float = Field(gt=0, description="A customer managed key, USD a month.")
    alarm_month: float = Field(gt=0, description="A CloudWatch alarm, USD a month.")

    @property
    def cross_region_read_gb(self) -> float:
        """A GB that nodes read from S3 in another region, through the NAT gateway, USD."""
        return self.inter_region_gb + self.nat_gateway_gb


@cache
def prices() -> Prices:
    """Return the prices of `prices.json`. They are an estimate for other regions."""
    return Prices.model_validate_json((Path(__file__).parent / "prices.json").read_text())


def monthly_to_hourly(usd_per_month: float) -> float:
    """Convert a monthly price into USD an hour."""
    return usd_per_month / HOURS_PER_MONTH
