"""The filter `manifest_problems` names the invalid key and the module that produces it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import MANIFEST
from trainyard.models.manifest import Manifest
from trainyard.models.schemas import schema_text

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json.loads(schema_text("manifest"))


def problems(manifest: dict[str, Any]) -> list[str]:
    """Load the filter plugin as Ansible does, and apply it."""
    spec = importlib.util.spec_from_file_location("manifest_filter", ROOT / "playbooks/filter_plugins/manifest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result: list[str] = module.FilterModule().filters()["manifest_problems"](manifest, SCHEMA)
    return result


def test_a_valid_manifest_has_no_problems() -> None:
    assert problems(MANIFEST.model_dump(mode="json")) == []


@pytest.mark.parametrize("key", list(Manifest.model_fields))
def test_a_missing_key_is_reported_with_its_producer(key: str) -> None:
    manifest = MANIFEST.model_dump(mode="json")
    del manifest[key]
    (problem,) = problems(manifest)
    producer = SCHEMA["properties"][key].get("producer", "infra/components/manifest.py")
    assert problem == f"manifest: '{key}' is a required property (produced by {producer})"


def test_an_invalid_value_is_reported_with_its_producer() -> None:
    manifest = MANIFEST.model_dump(mode="json")
    manifest["groups"][0]["nodes"] = 0
    (problem,) = problems(manifest)
    assert problem.startswith("groups.0.nodes: 0 is less than")
    assert "infra/components/workers.py" in problem


def test_each_producer_is_a_file_of_the_pulumi_program() -> None:
    producers = {entry["producer"] for entry in (SCHEMA, *SCHEMA["properties"].values()) if "producer" in entry}
    assert len(producers) > 1
    assert [producer for producer in sorted(producers) if not (ROOT / producer).is_file()] == []
