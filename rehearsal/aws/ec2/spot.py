"""Spot Instances: their price, validation of Spot options, and interruptions."""

from collections.abc import Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.ec2.reference import load_reference
from rehearsal.aws.ec2.terminations import terminate_by_ec2
from rehearsal.aws.moto_extension import ec2_error, extend

NOTICE_SECONDS = 120.0  # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
_ON_DEMAND_SHARE = 0.4  # an assumption of this project: the same in every zone, at any time
_RUNNING_STATES = {"pending", "running"}


def spot_price(instance_type: str) -> float:
    """Return the emulated Spot price, USD an hour. Raises NotImplementedError for a type without an On-Demand price."""
    on_demand_usd = load_reference().on_demand_usd.get(instance_type)
    if on_demand_usd is None:
        raise NotImplementedError(f"the Spot price of {instance_type}")
    return round(_ON_DEMAND_SHARE * on_demand_usd, 4)


def validate_spot_options(options: dict[str, Any]) -> None:
    """Raise EC2's error for invalid Spot options, and NotImplementedError for options that are not emulated."""
    behavior = options.get("InstanceInterruptionBehavior") or "terminate"
    request_type = options.get("SpotInstanceType") or "one-time"
    if behavior != "terminate" and request_type != "persistent":
        raise ec2_error(
            "InvalidParameterCombination",
            f"The interruption behavior {behavior} is for Spot requests of type persistent, not {request_type}.",
        )
    if request_type != "one-time" or behavior != "terminate":
        raise NotImplementedError(f"a Spot request of type {request_type} with the interruption behavior {behavior}")


def check_maximum_price(instance_type: str, options: dict[str, Any]) -> None:
    """Raise SpotMaxPriceTooLow if the request's maximum is below the price (default: the On-Demand price)."""
    maximum, price = options.get("MaxPrice"), spot_price(instance_type)
    if maximum not in (None, "") and float(str(maximum)) < price:
        raise ec2_error(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {maximum} is lower than the minimum required Spot request fulfillment price "
            f"of {price:g}.",
        )


def describe_spot_price_history(self: Any) -> ActionResult:
    """Return one price for each instance type and zone, dated now."""
    offerings = self.ec2_backend.describe_spot_price_history(
        self._get_param("InstanceTypes", []), self._filters_from_querystring()
    )
    history = [
        {
            "InstanceType": offering["InstanceType"],
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{spot_price(offering['InstanceType']):g}",
            "AvailabilityZone": offering["Location"],
            "Timestamp": CLOCK.utc(),
        }
        for offering in offerings
        if offering["InstanceType"] in load_reference().on_demand_usd
    ]
    return ActionResult({"SpotPriceHistory": history})


def _running_spot_instances() -> Iterator[Any]:
    backend: Any
    for _, _, backend in ec2_backends.iter_backends():
        for instance in backend.all_instances():
            if instance.lifecycle == "spot" and instance.state in _RUNNING_STATES:
                yield instance


def _due_interruptions() -> Iterator[Due]:
    for instance in _running_spot_instances():
        if instance.interrupted_at is not None:
            yield instance.interrupted_at, lambda instance=instance: _interrupt(instance)  # type: ignore[misc]
            continue
        for fault, when in ACTIVE_FAULTS.interruptions(instance):
            yield when, lambda instance=instance, fault=fault: _send_notice(instance, fault)  # type: ignore[misc]


def _send_notice(instance: Any, fault: Any) -> None:
    """Set the interruption time, which the instance's metadata reports from now on."""
    fault.remaining -= 1
    instance.interrupted_at = CLOCK.now() + NOTICE_SECONDS


def _interrupt(instance: Any) -> None:
    terminate_by_ec2(instance, "Server.SpotInstanceTermination: Spot instance termination")


def install() -> None:
    """Add DescribeSpotPriceHistory to moto and the interruptions to the clock."""
    extend(EC2Response, describe_spot_price_history)
    CLOCK.add_source(_due_interruptions)
