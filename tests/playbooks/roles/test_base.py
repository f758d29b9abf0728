"""The role `base` on a booted machine."""

from collections.abc import Iterator

import pytest

from tests.machines import Booted, booted

pytestmark = pytest.mark.booted


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("base")) as made:
        yield made


def test_it_converges_and_a_second_run_changes_nothing(node: Booted) -> None:
    first = node.role("base", base_container=True)
    assert first.code == 0, first.told
    assert "base : Write limits, kernel settings, and what apt shall bear" in first.changed
    again = node.role("base", base_container=True)
    assert (again.code, again.changed) == (0, ()), again.told
