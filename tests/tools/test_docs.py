"""Generated pages are up to date, and every field of a model has a description."""

from pathlib import Path

import pytest

from tools.docs.node_health import page
from tools.docs.stack_reference import reference
from trainyard.models.schemas import schemas

ROOT = Path(__file__).parents[2]


def test_stack_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/stack-reference.md").read_text() == reference(), (
        "python -m tools.docs.stack_reference > docs/stack-reference.md"
    )


def test_table_of_node_health_is_up_to_date() -> None:
    assert (ROOT / "docs/node-health.md").read_text() == page(), (
        "python -m tools.docs.node_health > docs/node-health.md"
    )


@pytest.mark.parametrize("name", schemas())
def test_every_field_has_a_description_and_others_are_refused(name: str) -> None:
    schema = schemas()[name]
    for model in [schema, *schema.get("$defs", {}).values()]:
        if model.get("type") != "object":
            continue
        assert model["additionalProperties"] is False
        for key, field in model["properties"].items():
            described = "description" in field or "$ref" in field  # a model's own docstring describes it
            assert described or key == "kind", f"{model['title']}.{key}"
