"""Nouns after numbers in messages."""

import pytest

from rehearsal.report import describe_retained
from trainyard.quantity import quantity


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "node", "0 nodes"),
        (1, "node", "1 node"),
        (1, "process", "1 process"),
        (8, "process", "8 processes"),
        (1.0, "minute", "1 minute"),
        (2.5, "minute", "2.5 minutes"),
    ],
)
def test_only_one_is_singular(count: float, noun: str, text: str) -> None:
    assert quantity(count, noun) == text


def test_retained_ids_count_their_resources() -> None:
    assert describe_retained(("s3 a", "kms b", "alias b")) == "a (1 resource)\nb (2 resources)"
