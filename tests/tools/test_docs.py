"""The settings page is made from the models, and every field of the contract says what it is."""

from pathlib import Path

import pytest

from tools.docs.stack_reference import reference
from trainyard.models.schemas import schemas

ROOT = Path(__file__).parents[2]


def test_the_page_is_fresh() -> None:
    assert (ROOT / "docs/settings.md").read_text() == reference(), (
        "python -m tools.docs.stack_reference > docs/settings.md"
    )


@pytest.mark.parametrize("name", schemas())
def test_every_field_is_described_and_no_other_is_taken(name: str) -> None:
    schema = schemas()[name]
    for model in [schema, *schema.get("$defs", {}).values()]:
        if model.get("type") != "object":
            continue
        assert model["additionalProperties"] is False
        for key, field in model["properties"].items():
            described = "description" in field or "$ref" in field  # a model's own docstring describes it
            assert described or key == "kind", f"{model['title']}.{key}"
