"""Preflight's check of the manifest names the key and its producer."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import MANIFEST
from trainyard.models.schemas import schema_text

FILE = Path(__file__).parents[2] / "playbooks/filter_plugins/manifest.py"


def problems(manifest: dict[str, Any]) -> list[str]:
    spec = importlib.util.spec_from_file_location("manifest_filter", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[str] = module.FilterModule().filters()["manifest_problems"](
        manifest, json.loads(schema_text("manifest"))
    )
    return found


def test_a_good_manifest_has_none() -> None:
    assert problems(MANIFEST.model_dump(mode="json")) == []


@pytest.mark.parametrize(
    ("key", "producer"),
    [
        ("bundle", "infra/packaging/bundle.py"),
        ("head", "infra/components/head.py"),
        ("groups", "infra/components/workers.py"),
    ],
)
def test_a_missing_key_names_its_producer(key: str, producer: str) -> None:
    manifest = MANIFEST.model_dump(mode="json")
    del manifest[key]
    (problem,) = problems(manifest)
    assert f"'{key}' is a required property" in problem
    assert producer in problem
