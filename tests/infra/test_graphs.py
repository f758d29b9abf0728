"""The graphs of four stacks equal the reviewed golden files: `python -m tests.infra.graphs` updates them."""

import pytest
import yaml

from tests.infra.conftest import deployed
from tests.infra.graphs import FOLDER, GOLDEN, graph_of, path_of


@pytest.mark.parametrize("stack", GOLDEN)
def test_graph_equals_the_golden_file(stack: str) -> None:
    graph = graph_of(deployed(stack))
    assert graph == path_of(stack).read_text(), "review the change: python -m tests.infra.graphs"


def test_every_golden_file_has_a_stack() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(GOLDEN)


@pytest.mark.parametrize("part", ["aliases", "timeouts", "depends_on", "retain_on_delete", "ignore_changes", "inputs"])
def test_graph_has_options_and_inputs(part: str) -> None:
    graph = yaml.safe_load(path_of("a100-cluster").read_text())
    assert any(part in resource for resource in graph.values())


@pytest.mark.parametrize("stack", GOLDEN)
def test_names_of_children_contain_the_name_of_their_component(stack: str) -> None:
    """So that a program can create each component class twice."""
    resources = deployed(stack).resources
    children = [resource for resource in resources.values() if resource.custom]
    assert [child.name for child in children if resources[child.parent].name not in child.name] == []
