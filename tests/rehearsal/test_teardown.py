"""What a report says of the emulated AWS, from the faults that were on."""

from rehearsal.teardown import AT_ONCE, emulated


def test_aws_answers_at_once_where_nothing_delays_it() -> None:
    assert [one.by for one in emulated(["deny,operation=ec2:CreateVpc"])][1] == AT_ONCE


def test_what_was_injected_was_rehearsed() -> None:
    spec = "throttle,operation=ec2:CreateVpc,times=2"
    assert emulated([spec])[1].by == f"{AT_ONCE}, but for what was injected: {spec}"
