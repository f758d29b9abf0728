"""Reports of an idle job, as requested by the run."""

import pytest

from tests.polling import eventually
from tests.trainyard.node.agent.nodes import NodeWithAgent
from trainyard.models.events import ActivityEvent
from trainyard.node.agent import activity
from trainyard.node.agent import agent as agent_module


def sample_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(agent_module, "REPORT_SECONDS", 0.2)


def test_sleeping_job_is_reported_as_idle(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_often(monkeypatch)
    node.set_idle_timeout(1.0)
    node.request(1)

    def idle() -> bool:
        return any(isinstance(event, ActivityEvent) and event.idle_seconds is not None for event in node.events())

    eventually(idle, "the report that the job is idle")


def test_run_without_idle_limit_is_not_sampled(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_often(monkeypatch)
    node.set_idle_timeout(1.0)
    node.request(1)
    eventually(lambda: node.agent._activity is not None, "the first sample")
    node.set_idle_timeout(None)
    eventually(lambda: node.agent._activity is None, "the end of sampling")
