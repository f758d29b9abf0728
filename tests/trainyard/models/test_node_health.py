"""Health of a node: order, merging and size."""

from trainyard.models.node_health import ACTIONS, MAX_FINDINGS, MAX_TEXT, HealthAction, HealthFinding, NodeHealth


def finding(
    rule: str, action: HealthAction = "warn", device: str | None = "GPU 0", time: float = 1.0, text: str = "text"
) -> HealthFinding:
    return HealthFinding(rule=rule, action=action, device=device, text=text, time=time)


def test_worst_action_is_that_of_the_severest_finding() -> None:
    assert NodeHealth().worst_action == "none"
    for index, action in enumerate(ACTIONS):
        findings = [finding(str(each), each) for each in ACTIONS[: index + 1]]
        assert NodeHealth().merged(findings).worst_action == action


def test_newer_finding_replaces_that_of_its_rule_and_device_but_not_its_time() -> None:
    health = NodeHealth(findings=(finding("a", time=5.0), finding("b", time=6.0)))
    merged = health.merged([finding("a", time=7.0, text="newer"), finding("a", device="GPU 1", time=8.0)])
    assert [(each.rule, each.device, each.time, each.text) for each in merged.findings] == [
        ("a", "GPU 0", 5.0, "newer"),
        ("b", "GPU 0", 6.0, "text"),
        ("a", "GPU 1", 8.0, "text"),
    ]


def test_snapshot_keeps_the_severest_findings_and_is_small() -> None:
    warnings = [finding("host-memory-uncorrected", device=f"GPU {index}", text="x" * MAX_TEXT) for index in range(40)]
    health = NodeHealth().merged([*warnings, finding("gpu-lost", "replace")])
    assert health.findings[0].rule == "gpu-lost"
    assert len(health.findings) == MAX_FINDINGS
    assert len(health.model_dump_json()) < 2048
