"""Differences of the emulated AWS in the report, depending on the injected faults."""

from rehearsal.teardown import NO_LIMITS, emulation_differences


def test_report_has_no_limits_without_faults_that_limit() -> None:
    assert [part.replacement for part in emulation_differences(["deny,operation=ec2:CreateVpc"])][1] == NO_LIMITS


def test_report_lists_injected_faults_as_exceptions() -> None:
    fault = "throttle,operation=ec2:CreateVpc,times=2"
    assert emulation_differences([fault])[1].replacement == f"{NO_LIMITS}, except for the injected faults: {fault}"
