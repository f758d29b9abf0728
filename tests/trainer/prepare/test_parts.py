"""How the work is cut."""

from dataclasses import dataclass

from trainer.prepare.parts import is_held_out, parts_of


@dataclass(frozen=True)
class Thing:
    name: str
    size: int


THINGS = [Thing(str(number), 100_000 + number) for number in range(100)]


def test_parts_hold_all_pieces_in_order() -> None:
    parts = parts_of(THINGS, 1_000_000, {})
    assert [piece for part in parts for piece in part.pieces] == THINGS
    assert all(0.8e6 < part.size < 1.2e6 for part in parts)


def test_a_small_corpus_makes_several_parts_all_the_same() -> None:
    assert len(parts_of(THINGS, 1e9, {})) == 10  # of a MiB, about


def test_a_piece_larger_than_a_part_is_a_part() -> None:
    parts = parts_of([Thing("a", 10), Thing("b", 50_000_000), Thing("c", 10)], 1000, {})
    assert [piece.name for part in parts for piece in part.pieces] == ["a", "b", "c"]


def test_an_address_tells_all_that_decides() -> None:
    (part,) = parts_of(THINGS[:2], 1e9, {"a": 1})
    (other,) = parts_of(THINGS[:2], 1e9, {"a": 2})
    (third,) = parts_of([THINGS[0], Thing("1", 99)], 1e9, {"a": 1})
    assert len({part.address, other.address, third.address}) == 3


def test_the_share_that_is_held_out_is_as_asked() -> None:
    out = sum(is_held_out(str(number).encode(), 0.1) for number in range(5000))
    assert 420 < out < 580
    assert not any(is_held_out(str(number).encode(), 0) for number in range(100))
    assert all(is_held_out(str(number).encode(), 1) for number in range(100))
