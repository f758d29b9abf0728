"""Failed node playbooks: which failures are final."""

from typing import Any

from trainyard.models.events import PlaybookEvent
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS, PlaybookFailures


def failed(time: float, **changes: Any) -> PlaybookEvent:
    """Return the event of a failed playbook."""
    fields = {"time": time, "instance": "i-1", "role": "builder", "boot": "0001", "status": "failed", "message": "no"}
    return PlaybookEvent.model_validate({**fields, **changes})


def test_failure_is_final_after_retries() -> None:
    failures = PlaybookFailures()
    failures.handle(failed(0.0))
    assert not failures.is_final("i-1", "0001")
    failures.handle(failed(PLAYBOOK_RETRY_SECONDS))
    assert failures.is_final("i-1", "0001")


def test_permanent_failure_is_final_at_once() -> None:
    failures = PlaybookFailures()
    failures.handle(failed(0.0, is_permanent=True))
    assert failures.is_final("i-1", "0001")
