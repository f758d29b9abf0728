"""Memory and collectives of rank 0 in the plans of the presets and of the GPU stacks, as budgets of the tests.

`python -m tests.trainer.plan.budgets > tests/trainer/plan/budgets.yaml` plans all of them, in ten minutes. GiB.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.plan import SETTINGS, preset_job, stack_jobs
from trainer.plan.command import GIB, PlannedJob, plan_job
from trainer.plan.step import RankPlan

JOBS: dict[str, PlannedJob] = {f"{preset} on {ranks}": preset_job(preset, ranks) for preset, ranks in SETTINGS}
JOBS |= dict(stack_jobs())
BUDGETS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def budget(plan: RankPlan) -> dict[str, Any]:
    """Return peak and memory by category, and for each collective and group: its ranks, number in a step, and size."""
    memory = {category: round(size / GIB, 2) for category, size in plan.memory.items()}
    collectives = {
        f"{each.name} {each.group}": [each.ranks, total.count, round(total.bytes / GIB, 2)]
        for each, total in plan.collectives.items()
    }
    return {"memory": {"peak": round(plan.peak_bytes / GIB, 2), **memory}, "collectives": collectives}


if __name__ == "__main__":
    plans = {name: budget(plan_job(job)[0]) for name, job in JOBS.items()}
    yaml.safe_dump(plans, sys.stdout, sort_keys=False, default_flow_style=None, width=110)
