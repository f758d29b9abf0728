"""Differences of the emulated AWS in the report, depending on the injected faults."""

from rehearsal.teardown import NO_DELAYS, emulation_differences


def test_report_has_no_delays_without_delaying_faults() -> None:
    assert [part.replacement for part in emulation_differences(["deny,operation=ec2:CreateVpc"])][1] == NO_DELAYS


def test_report_lists_injected_faults_as_exceptions() -> None:
    fault = "throttle,operation=ec2:CreateVpc,times=2"
    assert emulation_differences([fault])[1].replacement == f"{NO_DELAYS}, except for the injected faults: {fault}"
