"""Durations of the simulation, seconds, and where each was measured."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Duration:
    """A duration and its source."""

    seconds: float
    source: str


_REHEARSAL = "rehearsal of `local` with FAULT=rank-kill, 2 x 2 ranks on two shared cores, 25 November 2026"
_GROUP_GUIDE = "https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-health-checks.html"


@dataclass(frozen=True, kw_only=True)
class Times:
    """Durations of account, nodes and job."""

    group_reaction: Duration = Duration(10.0, f"assumed; {_GROUP_GUIDE} names no time")
    pending: Duration = Duration(360.0, "rehearsal/profiles.py: large GPU instances, an assumption with its sources")
    startup: Duration = Duration(23.5, "measured: docs/benchmarks.md, startup of 2 booted nodes until the job starts")
    heartbeat: Duration = Duration(5.0, "trainyard/node/agent/connection.py")
    agent_reaction: Duration = Duration(0.5, "trainyard/node/agent/agent.py: polls every 0.1 to 1 s")
    kill: Duration = Duration(3.0, "trainyard/node/agent/attempt.py: RANK_EXIT_SECONDS and a poll")
    crash_report: Duration = Duration(1.5, "torchrun's monitor interval and a poll of the agent")
    hang_limit: Duration = Duration(60.0, "docs/trainer.md: limit of a step, at least 60 s")
    first_step_limit: Duration = Duration(1800.0, "docs/trainer.md: timeouts.first_step_seconds")
    status_check: Duration = Duration(120.0, "trainyard/aws/instance_status.py: every minute; two are assumed to fail")
    health_check: Duration = Duration(7.1, f"measured: {_REHEARSAL}")
    reset: Duration = Duration(30.0, "assumed: nvidia-smi --gpu-reset of 8 GPUs")
    reboot: Duration = Duration(300.0, "assumed: reboot of a large instance")
    restart: Duration = Duration(3.1, f"measured: {_REHEARSAL}, from the request until the ranks are up")
    reload: Duration = Duration(9.4, f"measured: {_REHEARSAL}, from there until the first reported step")
    save_stall: Duration = Duration(1.0, "assumed: the middle column of the table of intervals in docs/trainer.md")
    save: Duration = Duration(30.0, "assumed: until an asynchronous save is complete")
    step: Duration = Duration(5.0, "assumed")

    def rows(self) -> list[tuple[str, float, str]]:
        """Return name, seconds and source of each duration."""
        values: list[tuple[str, Any]] = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name.replace("_", " "), value.seconds, value.source) for name, value in values]
