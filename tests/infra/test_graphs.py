"""The whole graph of each shipped stack is the one that was reviewed: `python -m tests.infra.graphs` writes it anew."""

import pytest
import yaml

from rehearsal.adapter.graph import Deployment
from tests.infra.conftest import STACKS
from tests.infra.graphs import FOLDER, graph_of, path_of


def test_graph_is_the_one_that_was_reviewed(shipped: Deployment) -> None:
    assert graph_of(shipped) == path_of(shipped.stack).read_text(), "read the change: python -m tests.infra.graphs"


def test_no_graph_is_left_of_a_stack_that_is_gone() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(STACKS)


@pytest.mark.parametrize("part", ["parent", "depends_on", "retain_on_delete", "ignore_changes", "inputs"])
def test_graph_tells_more_than_inputs(part: str) -> None:
    graph = yaml.safe_load(path_of("a100-cluster").read_text())
    assert any(part in one for one in graph.values())
