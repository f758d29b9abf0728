"""Spot Instances: their price, what EC2 refuses of a request for them, and their interruption."""

from collections.abc import Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.terminations import reclaim
from rehearsal.aws.extension import extend, refuse
from rehearsal.aws.injection import INJECTED
from trainyard.config.catalog import catalog

NOTICE_SECONDS = 120.0  # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
_SHARE = 0.4  # of the On-Demand list price, a figure of ours: in every zone, at any time
_RUNNING = {"pending", "running"}


def price_of(instance_type: str) -> float:
    """The emulated Spot price, USD an hour. Raises NotImplementedError for a type without a list price."""
    entry = catalog().get(instance_type)
    if entry is None or entry.on_demand_usd is None:
        raise NotImplementedError(f"the Spot price of {instance_type}")
    return round(_SHARE * entry.on_demand_usd, 4)


def check_options(options: dict[str, Any]) -> None:
    """Refuse Spot options that EC2 refuses, and those that no instance here would have."""
    behaviour = options.get("InstanceInterruptionBehavior") or "terminate"
    kind = options.get("SpotInstanceType") or "one-time"
    if behaviour != "terminate" and kind != "persistent":
        raise refuse(
            "InvalidParameterCombination",
            f"The interruption behavior {behaviour} is for Spot requests of type persistent, not {kind}.",
        )
    if kind != "one-time" or behaviour != "terminate":
        raise NotImplementedError(f"a Spot request of type {kind} with the interruption behavior {behaviour}")


def check_price(instance_type: str, options: dict[str, Any]) -> None:
    """Refuse a request whose maximum is below the price. Without a maximum it is the On-Demand price."""
    most, price = options.get("MaxPrice"), price_of(instance_type)
    if most not in (None, "") and float(str(most)) < price:
        raise refuse(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {most} is lower than the minimum required Spot request fulfillment price of "
            f"{price:g}.",
        )


def _priced(instance_type: str) -> bool:
    entry = catalog().get(instance_type)
    return entry is not None and entry.on_demand_usd is not None


def describe_spot_price_history(self: Any) -> ActionResult:
    offers = self.ec2_backend.describe_spot_price_history(
        self._get_param("InstanceTypes", []), self._filters_from_querystring()
    )
    history = [
        {
            "InstanceType": each["InstanceType"],
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{price_of(each['InstanceType']):g}",
            "AvailabilityZone": each["Location"],
            "Timestamp": CLOCK.utc(),
        }
        for each in offers
        if _priced(each["InstanceType"])
    ]
    return ActionResult({"SpotPriceHistory": history})


def _spot_instances() -> Iterator[Any]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        yield from (each for each in backend.all_instances() if each.lifecycle == "spot" and each.state in _RUNNING)


def _due() -> Iterator[Due]:
    for instance in _spot_instances():
        if instance.interrupted_at is not None:
            yield instance.interrupted_at, lambda instance=instance: _end(instance)  # type: ignore[misc]
            continue
        for on, when in INJECTED.interruptions(instance):
            yield when, lambda instance=instance, on=on: _notify(instance, on)  # type: ignore[misc]


def _notify(instance: Any, on: Any) -> None:
    """From now on its metadata tells when it ends."""
    on.left -= 1
    instance.interrupted_at = CLOCK.now() + NOTICE_SECONDS


def _end(instance: Any) -> None:
    reclaim(instance, "Server.SpotInstanceTermination: Spot instance termination")


def install() -> None:
    extend(EC2Response, describe_spot_price_history)
    CLOCK.watch(_due)
