"""Rehearses a job with random faults, and compares it with the same job without faults.

The result without faults is stored, and used again until settings or trainer change.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rehearsal.chaos.report import GOODPUT_PERIOD_SECONDS, MINIMUM_GOODPUT, ChaosReport, build_report
from rehearsal.chaos.schedule import plan_faults
from rehearsal.display import Display
from rehearsal.interrupts import Interrupts
from rehearsal.run import rehearse
from rehearsal.run_records import RunRecords
from rehearsal.workspace import Options, read_stack
from trainyard.errors import InputError, Problem

CHAOS_FILE = "chaos.json"
# Duration of a step of the stack `local` on two cores. It decides how many steps the job has by default.
NOMINAL_STEP_SECONDS = 0.06
CHECKPOINT_SECONDS = 10
_TRAINER = Path(__file__).parents[2] / "trainer"


@dataclass(frozen=True, kw_only=True)
class ChaosOptions:
    """The options of `python -m rehearsal chaos`. `steps`: of the job; None: as many as the minutes need."""

    seed: int
    minutes: float
    period_seconds: float
    steps: int | None


def run_chaos(options: Options, chaos: ChaosOptions, display: Display, interrupts: Interrupts) -> ChaosReport | None:
    """Run the job without and with faults. Returns the report; None if the undisturbed run failed.

    Raises InputError for invalid input, and if the job is too short for its faults.
    """
    if read_stack(options)[1].job.train is None:
        reason = "chaos compares the losses of the built-in trainer, and this stack has a custom job"
        raise InputError([Problem("--stack", options.stack, reason, "Use a stack with job.train", "custom_job")])
    if chaos.minutes * 60 < chaos.period_seconds:
        reason = f"no fault is injected in {chaos.minutes:g} minutes"
        fix = f"Use {chaos.minutes * 60:g} or less (PERIOD=), or more minutes (MINUTES=)"
        raise InputError([Problem("--period", f"{chaos.period_seconds:g}", reason, fix, "no_faults")])
    steps = chaos.steps or round(chaos.minutes * 60 / NOMINAL_STEP_SECONDS)
    defaults = (
        ("job.train.steps", steps),
        ("job.train.checkpoint.interval_steps", None),
        ("job.train.checkpoint.interval_seconds", CHECKPOINT_SECONDS),
        ("job.train.evaluation.interval_steps", max(1, steps // 10)),
    )
    options = replace(options, changes=(*defaults, *options.changes))
    config, settings, _ = read_stack(options)
    faults = plan_faults(chaos.seed, chaos.minutes, chaos.period_seconds, settings, options.backend)
    reference = _reference(options, config, display, interrupts)
    if reference is None:
        return None
    lines = reference.final_lines
    seconds = lines[-1].time - lines[0].time
    if faults and seconds < faults[-1].after:
        fitting = round(steps * chaos.minutes * 60 / seconds)
        reason = f"the job takes {seconds:.0f} s without faults, and the last fault is at {faults[-1].after:g} s"
        raise InputError([Problem("--steps", str(steps), reason, f"Use --steps {fitting}", "too_few_steps")])
    report, timeline = rehearse(replace(options, run_faults=tuple(faults)), display, interrupts)
    expects_goodput = settings.spares > 0 and chaos.period_seconds >= GOODPUT_PERIOD_SECONDS
    minimum = MINIMUM_GOODPUT if expects_goodput else 0.0
    result = build_report(chaos.seed, report, timeline.records or RunRecords(), lines, minimum)
    (options.folder / CHAOS_FILE).write_text(result.model_dump_json(indent=1) + "\n")
    return result


def _reference(options: Options, config: dict[str, Any], display: Display, interrupts: Interrupts) -> RunRecords | None:
    """Return the records of the job without faults, from an earlier chaos run if its settings were the same."""
    content = json.dumps([config, options.engine, options.backend, options.profile], sort_keys=True, default=str)
    sources = [path.read_bytes() for path in sorted(_TRAINER.rglob("*.py"))]
    digest = hashlib.sha256(b"\0".join([content.encode(), *sources])).hexdigest()
    file = options.project.rehearsals / "chaos" / f"{digest[:16]}.json"
    if file.exists():
        display.print_line("reference", f"uses the undisturbed run in {file}")
        return RunRecords.model_validate_json(file.read_text())
    display.print_line("reference", "the job without faults")
    report, timeline = rehearse(options, display, interrupts)
    if not report.ok or timeline.records is None:
        display.print_line("reference", "failed: no faults are injected")
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(timeline.records.model_dump_json())
    return timeline.records
