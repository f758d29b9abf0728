"""The checks of a chaos run."""

from typing import Any

import pytest
from rich.console import Console

from rehearsal.chaos.report import ChaosReport, build_report, print_report
from rehearsal.run_records import RunRecords
from tests.rehearsal.chaos.runs import injection, interrupted_run, worker
from trainyard.models.metrics import MetricLine
from trainyard.models.report import LeakedResource, Report

KILL = injection("rank-kill,rank=3,after=10", 40.5, "a", checkpoint="step-00000008")


def rehearsal(**changes: Any) -> Report:
    fields: dict[str, Any] = dict.fromkeys(Report.model_fields, ())
    fields |= {"ok": True, "stack": "local", "backend": "process", "engine": "mocks", "run": "run-1", "nodes": 2}
    fields |= {"processes_per_node": 2, "resources_created": 1, "resources_deleted": 1, "phases": {}, "objects": {}}
    fields |= {
        "first_loss": 5.0,
        "last_loss": 5.0,
        "steps": 20,
        "checkpoints_loaded": True,
        "results_uri": None,
        "replacements": 0,
    }
    return Report.model_validate({**fields, "injections": (KILL,), **changes})


def chaos(records: RunRecords | None = None, reference: list[MetricLine] | None = None, **changes: Any) -> ChaosReport:
    run = interrupted_run()
    return build_report(1, rehearsal(**changes), records or run, reference or run.final_lines)


def failed_checks(report: ChaosReport) -> dict[str, str]:
    return {check.name: check.text for check in report.checks if not check.ok}


def test_all_checks_of_a_recovered_run_pass() -> None:
    report = chaos()
    assert (report.ok, failed_checks(report)) == (True, {})
    durations = report.seconds_by_kind["rank-kill"]["next_step_seconds"]
    assert (durations.median, durations.maximum) == (15.5, 15.5)


def test_other_loss_or_order_than_the_undisturbed_run_is_reported() -> None:
    reference = interrupted_run().final_lines
    reference[4] = reference[4].model_copy(update={"loss": 4.0})
    reference[6] = reference[6].model_copy(update={"consumed": 1})
    failed = failed_checks(chaos(reference=reference))
    assert failed == {
        "losses": "step 5: (5.0, None), undisturbed (4.0, None)",
        "data order": "step 7: (56,), undisturbed (1,)",
    }


def test_rehearsal_without_a_run_fails() -> None:
    failed = failed_checks(build_report(1, rehearsal(injections=()), RunRecords(), interrupted_run().final_lines))
    assert failed == {
        "losses": "0 of 20 steps",
        "data order": "0 of 20 steps",
        "billed time": "no worker was launched, or not all are terminated",
    }


def test_run_that_ended_early_is_reported() -> None:
    run = interrupted_run()
    short = run.model_copy(update={"lines": run.lines[:-1]})
    assert failed_checks(chaos(short))["losses"] == "19 of 20 steps"


def test_metric_lines_may_be_missing_only_if_they_were_lost_with_a_node() -> None:
    run = interrupted_run()
    reference = run.final_lines
    last = max(line.step for line in run.lines if line.attempt == 1)
    lines = [line for line in run.lines if (line.step < last if line.attempt == 1 else line.step > last + 1)]
    without = run.model_copy(update={"lines": tuple(lines)})
    assert failed_checks(chaos(without, reference))["losses"] == "18 of 20 steps"
    lost = run.decisions[0].model_copy(update={"actions": {"b": "replace"}})
    with_lost_node = without.model_copy(update={"decisions": (lost,)})
    checks = {check.name: check for check in chaos(with_lost_node, reference).checks}
    assert checks["losses"].ok
    assert checks["losses"].text == "18 steps as in the undisturbed run; metrics of 2 steps were lost with their node"


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        ({"errors": ("destroy failed",)}, "rehearsal", "destroy failed"),
        ({"faults_without_effect": ("node-hang,node=1",)}, "faults", "without effect: node-hang,node=1"),
        (
            {"injections": (KILL, injection("rank-kill,rank=0,after=20", 60, "a"))},
            "faults",
            "without effect: rank-kill,rank=0,after=20",
        ),
        ({"leaked": (LeakedResource(service="ec2", kind="volume", id="vol-1"),)}, "leaks", "volume vol-1"),
        (
            {"injections": (KILL.model_copy(update={"checkpoint": "step-00000010"}),)},
            "saved steps",
            "lost from checkpoints: rank-kill,rank=3,after=10: 2 steps",
        ),
        ({"injections": ()}, "billed time", "140 instance-seconds billed, 21.4% without a known use"),
    ],
)
def test_failed_condition_is_reported(changes: dict[str, Any], name: str, text: str) -> None:
    report = chaos(**changes)
    assert (report.ok, failed_checks(report)) == (False, {name: text})


@pytest.mark.parametrize(
    ("injections", "is_healthy"),
    [
        ((KILL,), True),
        ((injection("node-hang,node=1", 40.5, "b"),), False),
        ((injection("gpu,node=1,xid=79", 40.5, "b"),), False),
        ((injection("gpu,node=1,xid=119", 40.5, "b"),), True),
        ((injection("gpu,node=1,xid=119", 35, "b"), injection("gpu,node=1,xid=119", 40.5, "b")), False),
    ],
)
def test_node_may_be_replaced_only_after_a_fault_that_needs_it(injections: Any, is_healthy: bool) -> None:
    run = interrupted_run()
    replaced = run.model_copy(update={"instances": (worker("a", 0, 70), worker("b", 0, 48), worker("c", 46, 70))})
    failed = failed_checks(chaos(replaced, injections=injections))
    assert (failed.get("healthy nodes") == "replaced: b") == is_healthy


def test_report_names_checks_faults_and_uses() -> None:
    console = Console(record=True, width=120, quiet=False)
    with console.capture() as capture:
        print_report(chaos(), console)
    for text in ("rank-kill,rank=3,after=10", "useful steps", "healthy nodes: 0 replaced", "goodput: 54.0%"):
        assert text in capture.get()


@pytest.mark.parametrize(("minimum", "is_ok"), [(0.5, True), (0.9, False)])
def test_goodput_has_a_minimum(minimum: float, is_ok: bool) -> None:
    run = interrupted_run()
    report = build_report(1, rehearsal(), run, run.final_lines, minimum)
    (check,) = (check for check in report.checks if check.name == "goodput")
    assert (check.ok, check.text) == (is_ok, f"54.0%, at least {minimum:.0%} required")
