"""What a stack says exists already: a reservation, a network, a key, a bucket. It stands before the program runs."""

from rehearsal.aws.given import (
    Given,
    GivenBucket,
    GivenKey,
    GivenNetwork,
    GivenReservation,
    GivenSubnet,
)
from rehearsal.aws.process import EmulatedAws

__all__ = ["Given", "GivenBucket", "GivenKey", "GivenNetwork", "GivenReservation", "GivenSubnet", "prepare"]


def prepare(aws: EmulatedAws, given: Given) -> None:
    """Make these under exactly their ids where they are not there yet, as in an account that is adopted.

    It is for the time before the rehearsal looks at the account: they were there, they stay, and are no leak.
    Raises ValueError that says what can't be, and then nothing was made.
    """
    aws.give(given)
