"""The control API of the rehearsal: endpoints by name and method, with their request and response bodies."""

import json
from collections.abc import Callable
from typing import Any

from pydantic import Field, ValidationError

from rehearsal.aws import account_state
from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.status_checks import set_responding
from rehearsal.aws.ec2.terminations import apply_instance_shutdown
from rehearsal.aws.faults import FAULTS, Fault
from rehearsal.aws.seed import create_seed_resources
from rehearsal.aws.seed_models import AccountSeed
from rehearsal.aws.timing import Timing, set_timing
from trainyard.base import StrictModel

Endpoint = Callable[[bytes], Any]


class Advance(StrictModel):
    """The body of a POST of `clock`."""

    advance_seconds: float = Field(
        gt=0, allow_inf_nan=False, description="Seconds by which the account's clock moves forward."
    )


def _clock(_: bytes) -> dict[str, float]:
    return {"now": CLOCK.now()}


def _advance(body: bytes) -> dict[str, float]:
    CLOCK.advance(Advance.model_validate_json(body).advance_seconds)
    return _clock(body)


class Shutdown(StrictModel):
    """The body of a POST of `shutdown`."""

    instance: str = Field(description="EC2 instance id.")


def _shutdown(body: bytes) -> dict[str, str]:
    apply_instance_shutdown(account_state.find_instance(Shutdown.model_validate_json(body).instance))
    return {}


class Responding(StrictModel):
    """The body of a POST of `responding`."""

    instance: str = Field(description="EC2 instance id.")
    is_responding: bool = Field(description="Whether its operating system responds.")


def _responding(body: bytes) -> dict[str, str]:
    content = Responding.model_validate_json(body)
    set_responding(account_state.find_instance(content.instance), content.is_responding)
    return {}


def _faults(_: bytes) -> list[dict[str, Any]]:
    return ACTIVE_FAULTS.dump()


def _faults_without_effect(_: bytes) -> list[dict[str, Any]]:
    return ACTIVE_FAULTS.without_effect()


def _add_faults(body: bytes) -> list[dict[str, Any]]:
    ACTIVE_FAULTS.add(_parse_faults(body))
    return ACTIVE_FAULTS.dump()


def _remove_faults(body: bytes) -> list[dict[str, Any]]:
    """Remove the faults of the body; without a body, all."""
    if body:
        ACTIVE_FAULTS.remove(_parse_faults(body))
    else:
        ACTIVE_FAULTS.clear()
    return ACTIVE_FAULTS.dump()


def _parse_faults(body: bytes) -> list[Fault]:
    try:
        return FAULTS.validate_json(body)
    except ValidationError as error:
        raise ValueError(_reasons(error)) from None


def _seed(body: bytes) -> dict[str, str]:
    try:
        account_seed = AccountSeed.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_reasons(error)) from None
    create_seed_resources(account_seed)
    return {}


def _set_timing(body: bytes) -> dict[str, str]:
    set_timing(Timing.model_validate_json(body))
    return {}


def _reasons(error: ValidationError) -> str:
    """Return each error as `location: reason`."""
    errors = json.loads(error.json(include_url=False, include_context=False))
    return "; ".join(f"{'.'.join(map(str, entry['loc'])) or 'body'}: {entry['msg']}" for entry in errors)


ENDPOINTS: dict[tuple[str, str], Endpoint] = {
    ("instances", "GET"): lambda _: [instance.model_dump() for instance in account_state.instances()],
    ("reservations", "GET"): lambda _: [record.model_dump() for record in account_state.capacity_reservations()],
    ("capacity-requests", "GET"): lambda _: [record.model_dump() for record in account_state.capacity_requests()],
    ("shutdown", "POST"): _shutdown,
    ("responding", "POST"): _responding,
    ("resources", "GET"): lambda _: [resource.model_dump() for resource in account_state.list_resources()],
    ("clock", "GET"): _clock,
    ("clock", "POST"): _advance,
    ("seed", "POST"): _seed,
    ("timing", "POST"): _set_timing,
    ("faults", "GET"): _faults,
    ("faults-without-effect", "GET"): _faults_without_effect,
    ("faults", "POST"): _add_faults,
    ("faults", "DELETE"): _remove_faults,
}
