"""Partition of the source data into parts."""

from dataclasses import dataclass

from trainer.prepare.partitioning import is_held_out, partition


@dataclass(frozen=True)
class Item:
    name: str
    size: int


ITEMS = [Item(str(number), 100_000 + number) for number in range(100)]


def test_parts_have_all_items_in_order() -> None:
    parts = partition(ITEMS, 1_000_000, {})
    assert [item for part in parts for item in part.items] == ITEMS
    assert all(0.8e6 < part.size < 1.2e6 for part in parts)


def test_small_corpus_has_several_parts() -> None:
    assert len(partition(ITEMS, 1e9, {})) == 10  # of about 1 MiB


def test_item_larger_than_the_target_is_one_part() -> None:
    parts = partition([Item("a", 10), Item("b", 50_000_000), Item("c", 10)], 1000, {})
    assert [item.name for part in parts for item in part.items] == ["a", "b", "c"]


def test_fingerprint_depends_on_settings_and_items() -> None:
    (part,) = partition(ITEMS[:2], 1e9, {"a": 1})
    (other,) = partition(ITEMS[:2], 1e9, {"a": 2})
    (third,) = partition([ITEMS[0], Item("1", 99)], 1e9, {"a": 1})
    assert len({part.fingerprint, other.fingerprint, third.fingerprint}) == 3


def test_share_of_held_out_samples_is_as_requested() -> None:
    held_out = sum(is_held_out(str(number).encode(), 0.1) for number in range(5000))
    assert 420 < held_out < 580
    assert not any(is_held_out(str(number).encode(), 0) for number in range(100))
    assert all(is_held_out(str(number).encode(), 1) for number in range(100))
