"""Outcomes of a run: why it ends, and for how long its nodes are kept."""

from pydantic import ValidationError

from trainyard.models.decision import AttemptDecision
from trainyard.models.metrics import Results
from trainyard.models.run import Outcome
from trainyard.node.controller.run_state import RunState


def create_outcome(
    state: RunState, kind: str, reason: str, failed: AttemptDecision | None = None, *, keep_minutes: float = 0.0
) -> Outcome:
    """Return the outcome of the run now.

    `kind`: succeeded, failed or stopped. `failed`: the attempt whose failure ends the run, if any. `keep_minutes`: for
    how long the nodes are kept for another run, at most until the deadline of this run.
    """
    now = state.clock.time()
    kept_until = min(now + keep_minutes * 60, state.run.deadline)
    return Outcome.model_validate(
        {
            "state": kind,
            "reason": reason,
            "attempts": state.control.attempt,
            "ended_at": now,
            "failed_node": failed.failed_node if failed else None,
            "failure": failed.failure if failed else None,
            "launch_failed": kind == "failed" and not state.control.started,
            "nodes_kept_until": kept_until if kept_until > now else None,
        }
    )


def create_completed_outcome(state: RunState, stack: str) -> Outcome:
    """Return the outcome of a run whose ranks have all ended with exit code 0. The results in S3 must confirm it."""
    limits = state.run.limits
    missing, reason = _check_results(state)
    if missing is None:
        return create_outcome(state, "succeeded", reason, keep_minutes=limits.keep_after_success_minutes)
    fix = f"Read the output of the ranks: trainyard logs -s {stack}"
    text = f"all ranks ended with exit code 0, but {missing}. {fix}"
    return create_outcome(state, "failed", text, keep_minutes=limits.keep_after_failure_minutes)


def _check_results(state: RunState) -> tuple[str | None, str]:
    """Return what is missing in the results, if anything, and a summary of them."""
    if state.run.job.train is None:
        return None, "all ranks ended with exit code 0"
    key = f"{state.layout.results}results.json"
    content = state.data.find(key)
    if content is None:
        return f"s3://{state.data.name}/{key} does not exist", ""
    try:
        results = Results.model_validate_json(content)
    except ValidationError as error:
        return f"s3://{state.data.name}/{key} is not valid ({error})", ""
    if not state.find_newest_checkpoint():
        return f"s3://{state.data.name}/{state.layout.checkpoints} has no complete checkpoint", ""
    return None, f"{results.steps} steps, last loss {results.last_loss:.4f}"
