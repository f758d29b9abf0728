"""What a report says was not emulated, from the faults that were on."""

from rehearsal.clearing import not_emulated


def test_aws_answers_at_once_where_nothing_delays_it() -> None:
    assert [one.why for one in not_emulated(["deny,operation=ec2:CreateVpc"])][1] == "the emulated AWS answers at once"


def test_what_was_injected_was_rehearsed() -> None:
    spec = "throttle,operation=ec2:CreateVpc,times=2"
    told = not_emulated([spec])[1]
    assert told.what.endswith("but for the faults")
    assert told.why.endswith(f"but for what was injected: {spec}")
