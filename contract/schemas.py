"""JSON Schemas of the contract: `python -m contract.schemas FOLDER` writes one file a model."""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from contract.base import Contract
from contract.catalog import Catalog
from contract.dataset import DATASET
from contract.events import NODE_EVENT
from contract.manifest import Manifest
from contract.metrics import MetricLine, Results
from contract.prices import Prices
from contract.report import Report
from contract.run import Control, LaunchResult, Outcome, RunRecord
from contract.settings import StackSettings
from contract.training import TrainerConfig
from contract.verification import Verification

_MODELS: dict[str, type[Contract]] = {
    "settings": StackSettings,
    "training": TrainerConfig,
    "catalog": Catalog,
    "prices": Prices,
    "manifest": Manifest,
    "metric": MetricLine,
    "results": Results,
    "report": Report,
    "run": RunRecord,
    "control": Control,
    "outcome": Outcome,
    "launch": LaunchResult,
    "verification": Verification,
}
_UNIONS: dict[str, TypeAdapter[Any]] = {"dataset": DATASET, "event": NODE_EVENT}  # which are no models of their own


def schemas() -> dict[str, dict[str, Any]]:
    """Name -> JSON Schema, of every model that crosses a wall."""
    return {name: _schema(name) for name in (*_MODELS, *_UNIONS)}


def _schema(name: str) -> dict[str, Any]:
    return _UNIONS[name].json_schema() if name in _UNIONS else _MODELS[name].model_json_schema()


def schema_text(name: str) -> str:
    """One schema as it is written to a file: sorted, so that equal models give equal bytes."""
    return json.dumps(_schema(name), indent=1, sort_keys=True) + "\n"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m contract.schemas FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in schemas():
        (folder / f"{name}.schema.json").write_text(schema_text(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
