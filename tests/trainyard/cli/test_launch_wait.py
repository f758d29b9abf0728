"""Whether `trainyard launch` waits for the start of the job."""

import pytest

from trainyard.cli.launch import waits_for_start


@pytest.mark.parametrize(
    ("option", "environment", "waits"),
    [
        (None, {}, True),
        (None, {"CI": "false"}, True),
        (None, {"CI": "true"}, False),
        (True, {"CI": "true"}, True),
        (False, {}, False),
    ],
)
def test_option_overrides_the_ci_variable(option: bool | None, environment: dict[str, str], waits: bool) -> None:
    assert waits_for_start(option, environment) is waits
