"""An account of its own for each file, and a node that has configured itself there."""

from collections.abc import Iterator

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.nodes import Cloud, cloud


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, own_account: EmulatedAws) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("place"), own_account) as made:
        yield made


@pytest.fixture(scope="module")
def node(place: Cloud) -> str:
    """A worker that has configured itself once."""
    name = place.launch()
    assert place.play(name, 1).status == "ok", place.machine(name).journal()
    return name


@pytest.fixture
def nodes_of_its_own(place: Cloud) -> Iterator[None]:
    """What a test launches ends with it: a machine takes memory, and the kernel lets some eight boot at once."""
    before = len(place.launched)
    yield
    place.terminate(place.launched[before:])
