"""Faults as a user asks for them: `--fault kind,key=value,...`, and the variable REHEARSAL_DENY."""

import os
from collections.abc import Iterable
from typing import get_args

from pydantic import ValidationError

from rehearsal.aws.faults import DENY_VARIABLE, Capacity, Fault, SpotInterruption, check_operation, denied
from trainyard.base import InputError, Problem
from trainyard.config.catalog import catalog
from trainyard.config.settings import StackSettings
from trainyard.config.validation_messages import in_words

_MODELS = {model.model_fields["kind"].default: model for model in get_args(Fault)}


def form_of(kind: str) -> str:
    """How a fault of this kind is written: `capacity,limit=LIMIT[,instance_type=INSTANCE_TYPE]`."""
    fields = {name: field for name, field in _MODELS[kind].model_fields.items() if name != "kind"}
    parts = {f",{name}={name.upper()}": field.is_required() for name, field in fields.items()}
    return kind + "".join(part if required else f"[{part}]" for part, required in parts.items())


FORMS = tuple(form_of(kind) for kind in _MODELS)


def spec_of(fault: Fault) -> str:
    """A fault as `--fault` takes it."""
    given = fault.model_dump(exclude={"kind"}, exclude_none=True)
    return ",".join([fault.kind, *(f"{name}={value}" for name, value in given.items())])


def faults_of(specs: Iterable[str]) -> tuple[Fault, ...]:
    """What `--fault` asked for; REHEARSAL_DENY, which the account reads itself, is looked at too.

    Raises InputError with all that is wrong with either.
    """
    faults: list[Fault] = []
    problems: list[Problem] = []
    for spec in specs:
        try:
            faults.append(_fault_of(spec))
        except InputError as error:
            problems += error.problems
    try:
        denied(os.environ.get(DENY_VARIABLE, ""))
    except ValueError as error:
        value, fix = os.environ[DENY_VARIABLE], "Name API operations with commas between, or unset it"
        problems.append(Problem(key=DENY_VARIABLE, value=value, why=str(error), fix=fix))
    if problems:
        raise InputError(problems)
    return tuple(faults)


def check_faults(faults: Iterable[Fault], settings: StackSettings) -> None:
    """Raises InputError for a fault that can't meet anything of this stack."""
    spot = any(group.market == "spot" for group in settings.groups)
    for fault in faults:
        if isinstance(fault, SpotInterruption) and not spot:
            fix = "Leave it out, or rehearse a stack with capacity.spot or capacity.spot_above_base"
            raise _wrong(spec_of(fault), ["the stack has no Spot node"], fix)


def _fault_of(spec: str) -> Fault:
    kind, *rest = (part.strip() for part in spec.split(","))
    model = _MODELS.get(kind)
    if model is None:
        raise _wrong(spec, [f"no kind of fault {kind!r}"], f"Write it as one of {'; '.join(FORMS)}")
    usage = f"Write it as {form_of(kind)}"
    pairs = [part.partition("=") for part in rest]
    if odd := [name for name, equals, _ in pairs if not equals or name == "kind"]:
        raise _wrong(spec, [f"{name!r} is no key=value of it" for name in odd], usage)
    given = {name: value for name, _, value in pairs}
    if len(given) < len(pairs):
        raise _wrong(spec, ["a key stands twice"], usage)
    try:
        fault: Fault = model.model_validate(given)
        _check(fault)
    except ValidationError as error:
        reasons = [f"{item['loc'][0]}: {in_words(item).why}" for item in error.errors(include_url=False)]
        raise _wrong(spec, reasons, usage) from None
    except ValueError as error:
        raise _wrong(spec, [str(error)], usage) from None
    return fault


def _check(fault: Fault) -> None:
    """Refuse a fault that no stack could meet. Raises ValueError."""
    if (
        isinstance(fault, (Capacity, SpotInterruption))
        and fault.instance_type
        and catalog().get(fault.instance_type) is None
    ):
        known = ", ".join(entry.name for entry in catalog().instance_types)
        raise ValueError(f"{fault.instance_type} is not in the hardware catalog; it has {known}")
    check_operation(fault)


def _wrong(spec: str, reasons: Iterable[str], fix: str) -> InputError:
    return InputError([Problem(key="--fault", value=spec, why="; ".join(reasons), fix=fix)])
