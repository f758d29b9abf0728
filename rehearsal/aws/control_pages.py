"""The control pages by name and method: what each takes and answers. They belong to the rehearsal; no AWS has them."""

import json
from collections.abc import Callable
from typing import Any

from pydantic import Field, ValidationError

from rehearsal.aws import control
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.faults import FAULTS, Fault
from rehearsal.aws.injection import INJECTED
from rehearsal.aws.seed import make
from rehearsal.aws.seed_models import Given
from trainyard.base import Contract

Page = Callable[[bytes], Any]


class Advance(Contract):
    """The body of a POST of `clock`."""

    advance_seconds: float = Field(gt=0, allow_inf_nan=False, description="How far the account's clock jumps.")


def _clock(_: bytes) -> dict[str, float]:
    return {"now": CLOCK.now()}


def _advance(body: bytes) -> dict[str, float]:
    CLOCK.advance(Advance.model_validate_json(body).advance_seconds)
    return _clock(body)


class SwitchedOff(Contract):
    """The body of a POST of `switched-off`."""

    instance: str = Field(description="EC2 instance id.")


def _switched_off(body: bytes) -> dict[str, str]:
    control.switch_off(SwitchedOff.model_validate_json(body).instance)
    return {}


def _faults(_: bytes) -> list[dict[str, Any]]:
    return INJECTED.told()


def _add_faults(body: bytes) -> list[dict[str, Any]]:
    INJECTED.add(_faults_in(body))
    return INJECTED.told()


def _end_faults(body: bytes) -> list[dict[str, Any]]:
    """Those of the body; without one, all."""
    if body:
        INJECTED.remove(_faults_in(body))
    else:
        INJECTED.clear()
    return INJECTED.told()


def _faults_in(body: bytes) -> list[Fault]:
    try:
        return FAULTS.validate_json(body)
    except ValidationError as error:
        raise ValueError(_reasons(error)) from None


def _give(body: bytes) -> dict[str, str]:
    try:
        given = Given.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(_reasons(error)) from None
    make(given)
    return {}


def _reasons(error: ValidationError) -> str:
    """Each mistake as `place: why`."""
    found = json.loads(error.json(include_url=False, include_context=False))
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in found)


PAGES: dict[tuple[str, str], Page] = {
    ("instances", "GET"): lambda _: [each.model_dump() for each in control.instances()],
    ("switched-off", "POST"): _switched_off,
    ("dump", "GET"): lambda _: [each.model_dump() for each in control.dump()],
    ("clock", "GET"): _clock,
    ("clock", "POST"): _advance,
    ("given", "POST"): _give,
    ("faults", "GET"): _faults,
    ("faults", "POST"): _add_faults,
    ("faults", "DELETE"): _end_faults,
}
