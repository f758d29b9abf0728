"""Parses the faults to inject: `--fault kind,key=value,...`, and the environment variable REHEARSAL_DENY.

Any fault may have the key `after`: seconds after the first step of the job at which it is injected.
"""

import math
import os
from collections.abc import Iterable
from typing import get_args

from pydantic import ValidationError

from rehearsal.aws.faults import (
    DENY_VARIABLE,
    Capacity,
    CapacityBlockStart,
    Fault,
    FsxDeployment,
    PaymentFailure,
    Reclaim,
    ReservationFailure,
    SpotInterruption,
    check_operation,
    parse_denied_operations,
)
from rehearsal.aws.zones import region_zones
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.injection import RUN_FAULTS, ScheduledFault
from rehearsal.run_faults.job import RunFault
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import message_of
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.models.report import BackendName

AnyFault = Fault | RunFault
_MODELS: dict[str, type[AnyFault]] = {
    model.model_fields["kind"].default: model for model in (*get_args(Fault), *RUN_FAULTS)
}


def _is_step(name: str) -> bool:
    """Return whether a field is `step`, which is the last field of each fault that has it."""
    return name == "step"


def fault_syntax(kind: str) -> str:
    """Return the syntax of a kind of fault, such as `capacity,limit=LIMIT[,instance_type=INSTANCE_TYPE]`."""
    fields = {name: field for name, field in _MODELS[kind].model_fields.items() if name != "kind"}
    parts = {f",{name}={name.upper()}": fields[name].is_required() for name in sorted(fields, key=_is_step)}
    return kind + "".join(part if required else f"[{part}]" for part, required in parts.items()) + "[,after=SECONDS]"


FAULT_SYNTAX = tuple(fault_syntax(kind) for kind in _MODELS)


def format_fault(fault: AnyFault | ScheduledFault) -> str:
    """Return a fault in the syntax of --fault."""
    if isinstance(fault, ScheduledFault):
        return format_fault(fault.fault) + (f",after={fault.after:g}" if fault.after else "")
    fields = fault.model_dump(exclude={"kind"}, exclude_defaults=True)
    return ",".join([fault.kind, *(f"{name}={fields[name]}" for name in sorted(fields, key=_is_step))])


def parse_faults(specs: Iterable[str]) -> tuple[Fault | ScheduledFault, ...]:
    """Parse the values of --fault, and check REHEARSAL_DENY, which the emulated AWS parses itself.

    Faults of the account without `after` are not scheduled. Raises InputError with the problems of both.
    """
    faults: list[Fault | ScheduledFault] = []
    problems: list[Problem] = []
    for spec in specs:
        try:
            faults.append(_parse_fault(spec))
        except InputError as error:
            problems += error.problems
    try:
        parse_denied_operations(os.environ.get(DENY_VARIABLE, ""))
    except ValueError as error:
        value, fix = os.environ[DENY_VARIABLE], "Set it to API operations separated by commas, or unset it"
        problems.append(Problem(DENY_VARIABLE, value, str(error), fix, "invalid_permission_denial"))
    if problems:
        raise InputError(problems)
    return tuple(faults)


def check_faults(
    faults: Iterable[AnyFault | ScheduledFault], settings: StackSettings, region: str, backend: BackendName
) -> None:
    """Check that each fault can affect this stack in its region. Raises InputError for the first that cannot."""
    has_spot = any(group.market == "spot" for group in settings.groups)
    for each in faults:
        fault = each.fault if isinstance(each, ScheduledFault) else each
        if isinstance(each, ScheduledFault) and each.after and settings.job.train is None:
            fix = "Remove this fault, or rehearse a stack with job.train"
            raise _error(format_fault(each), ["after: the steps of a custom job are not known"], fix)
        if isinstance(fault, RunFault):
            _check_run_fault(fault, settings, backend)
        if isinstance(fault, GpuFault):
            _check_gpu(fault, settings)
        if isinstance(fault, SpotInterruption) and not has_spot:
            fix = "Remove this fault, or rehearse a stack with capacity.spot or capacity.spot_above_base"
            raise _error(format_fault(fault), ["the stack has no Spot Instances"], fix)
        if isinstance(fault, Reclaim) and not settings.capacity.interruptible:
            fix = "Remove this fault, or rehearse a stack with capacity.reservation.interruptible"
            raise _error(format_fault(fault), ["the stack has no interruptible reservation"], fix)
        if isinstance(fault, (CapacityBlockStart, PaymentFailure)) and settings.capacity.capacity_block is None:
            fix = "Remove this fault, or rehearse a stack with capacity.capacity_block"
            raise _error(format_fault(fault), ["the stack has no Capacity Block"], fix)
        if isinstance(fault, FsxDeployment) and (settings.fsx is None or settings.fsx.deployment_type != fault.type):
            fix = "Remove this fault, or rehearse a stack with this fsx.deployment_type"
            raise _error(format_fault(fault), [f"the stack has no file system of type {fault.type}"], fix)
        if isinstance(fault, (Capacity, SpotInterruption)) and fault.instance_type:
            _check_choice(fault, "instance_type", fault.instance_type, "the stack", settings.instance_types)
        if isinstance(fault, (Capacity, ReservationFailure, FsxDeployment)) and fault.zone:
            _check_choice(fault, "zone", fault.zone, f"region {region}", region_zones(region))


def _check_run_fault(fault: RunFault, settings: StackSettings, backend: BackendName) -> None:
    for name, count in (("rank", settings.nodes * settings.processes_per_node), ("node", settings.nodes)):
        if getattr(fault, name, 0) >= count:
            reason = f"{name}: the stack has {name}s 0 to {count - 1}"
            raise _error(format_fault(fault), [reason], f"Use one of these {name}s")
    if settings.job.train is None:
        fix = "Remove this fault, or rehearse a stack with job.train"
        raise _error(format_fault(fault), ["step: the steps of a custom job are not known"], fix)
    steps = settings.job.train.steps
    if fault.step >= steps:
        fix = f"Use a step before {steps}, or add --set job.train.steps=NUMBER (SET=job.train.steps=NUMBER)"
        raise _error(format_fault(fault), [f"step: the job has {steps} steps"], fix)
    if backend not in fault.backends:
        fix = f"Add --backend {fault.backends[0]} (BACKEND={fault.backends[0]})"
        raise _error(format_fault(fault), [f"nodes of the backend {backend} cannot have this fault"], fix)


def _check_gpu(fault: GpuFault, settings: StackSettings) -> None:
    gpu = settings.worker_type.gpu
    if gpu is None and fault.condition is not None:
        fix = "Set only xid, or rehearse a stack with GPUs"
        raise _error(format_fault(fault), ["condition: the nodes of the stack have no GPUs"], fix)
    count = gpu.count if gpu is not None else settings.processes_per_node
    if fault.gpu >= count:
        reason = f"gpu: a node of the stack has {count} GPUs, or processes in their place: 0 to {count - 1}"
        raise _error(format_fault(fault), [reason], "Use one of these GPUs")


def _check_choice(fault: Fault, name: str, value: str, owner: str, choices: list[str]) -> None:
    if value not in choices:
        fix = f"{did_you_mean(value, choices)}Use one of {', '.join(choices)}"
        raise _error(format_fault(fault), [f"{name}: {owner} has no {value}"], fix)


def _parse_fault(spec: str) -> Fault | ScheduledFault:
    kind, *rest = (part.strip() for part in spec.split(","))
    model = _MODELS.get(kind)
    if model is None:
        fix = f"{did_you_mean(kind, _MODELS)}Use one of {'; '.join(FAULT_SYNTAX)}"
        raise _error(spec, [f"unknown kind of fault {kind!r}"], fix)
    usage = f"Use the syntax {fault_syntax(kind)}"
    pairs = [part.partition("=") for part in rest]
    if invalid := [name for name, equals, _ in pairs if not equals or name == "kind"]:
        raise _error(spec, [f"{name!r} is not a valid key=value pair" for name in invalid], usage)
    fields = {name: value for name, _, value in pairs}
    if len(fields) < len(pairs):
        raise _error(spec, ["duplicate key"], usage)
    after = _parse_after(spec, fields.pop("after", "0"), usage)
    try:
        fault: AnyFault = model.model_validate(fields)
        check_operation(fault)
    except ValidationError as error:
        unknown = [str(item["loc"][0]) for item in error.errors() if item["type"] == "extra_forbidden"]
        suggestions = (did_you_mean(name, model.model_fields.keys() - {"kind"}) for name in unknown)
        reasons = [f"{item['loc'][0]}: {message_of(item).reason}" for item in error.errors(include_url=False)]
        raise _error(spec, reasons, "".join(suggestions) + usage) from None
    except ValueError as error:
        raise _error(spec, [str(error)], usage) from None
    return ScheduledFault(fault, after) if after or isinstance(fault, RunFault) else fault


def _parse_after(spec: str, text: str, usage: str) -> float:
    try:
        after = float(text)
    except ValueError:
        after = -1.0
    if not 0 <= after < math.inf:
        raise _error(spec, [f"after: {text!r} is not a number of seconds"], usage)
    return after


def _error(spec: str, reasons: Iterable[str], fix: str) -> InputError:
    return InputError([Problem("--fault", spec, "; ".join(reasons), fix, "invalid_fault")])
