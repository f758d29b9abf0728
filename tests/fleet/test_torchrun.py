"""Where a job's ranks meet."""

import pytest

from fleet.torchrun import interface_of


def test_the_interface_of_a_loopback_address_is_lo() -> None:
    assert interface_of("127.77.1.9") == "lo"


def test_an_address_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(OSError, match=r"no network interface holds 203.0.113.9"):
        interface_of("203.0.113.9")
