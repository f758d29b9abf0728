"""Auto Scaling replaces an instance that EC2 reports as impaired."""

from collections.abc import Callable, Iterator

import pytest

from rehearsal.aws.autoscaling.health_checks import RECOVERY_SECONDS
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.autoscaling.test_activities import members, set_capacity
from tests.rehearsal.aws.conftest import Client

IMPAIRED_SECONDS, GRACE_SECONDS = 120.0, 600


@pytest.fixture(autouse=True)
def timing(aws: EmulatedAws) -> Iterator[None]:
    aws.set_timing(Timing(impaired_seconds=IMPAIRED_SECONDS))
    yield
    aws.set_timing(Timing())


@pytest.fixture
def silent(aws: EmulatedAws, client: Client, group: Callable[..., str]) -> tuple[str, str]:
    """A group with a grace period, and its instance, which does not respond."""
    name = group(HealthCheckGracePeriod=GRACE_SECONDS)
    set_capacity(client, name, 1)
    (instance,) = members(client, name)
    aws.report_responding(instance, False)
    return name, instance


def test_impaired_instance_is_replaced_after_the_grace_period(
    aws: EmulatedAws, client: Client, silent: tuple[str, str]
) -> None:
    name, instance = silent
    aws.advance_clock(IMPAIRED_SECONDS + RECOVERY_SECONDS + 1)
    assert members(client, name) == [instance]
    aws.advance_clock(GRACE_SECONDS)
    (replacement,) = members(client, name)
    assert replacement != instance


def test_instance_that_recovers_is_not_replaced(aws: EmulatedAws, client: Client, silent: tuple[str, str]) -> None:
    name, instance = silent
    aws.report_responding(instance, True)
    aws.advance_clock(GRACE_SECONDS)
    aws.report_responding(instance, False)
    aws.advance_clock(IMPAIRED_SECONDS + RECOVERY_SECONDS - 1)
    aws.report_responding(instance, True)
    aws.advance_clock(GRACE_SECONDS)
    assert members(client, name) == [instance]
