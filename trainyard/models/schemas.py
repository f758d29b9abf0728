"""JSON Schemas of the models: `python -m trainyard.models.schemas FOLDER` writes one file per model."""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainyard.base import StrictModel
from trainyard.config.catalog import Catalog
from trainyard.config.prices import Prices
from trainyard.config.settings import StackSettings
from trainyard.config.training import TrainerConfig
from trainyard.models.archive_state import ArchiveState
from trainyard.models.dataset import DATASET
from trainyard.models.events import NODE_EVENT
from trainyard.models.health_check import HealthCheckResult
from trainyard.models.manifest import Manifest
from trainyard.models.metrics import MetricLine, Results
from trainyard.models.rank_progress import RankProgress
from trainyard.models.report import Report
from trainyard.models.run import Control, LaunchResult, Outcome, RunRecord

_MODELS: dict[str, type[StrictModel]] = {
    "settings": StackSettings,
    "training": TrainerConfig,
    "catalog": Catalog,
    "prices": Prices,
    "manifest": Manifest,
    "metric": MetricLine,
    "progress": RankProgress,
    "results": Results,
    "report": Report,
    "run": RunRecord,
    "control": Control,
    "outcome": Outcome,
    "launch": LaunchResult,
    "health_check": HealthCheckResult,
    "archived": ArchiveState,
}
_UNIONS: dict[str, TypeAdapter[Any]] = {"dataset": DATASET, "event": NODE_EVENT}  # unions of models


def schemas() -> dict[str, dict[str, Any]]:
    """Name -> JSON Schema, of every model that processes exchange."""
    return {name: _schema(name) for name in (*_MODELS, *_UNIONS)}


def _schema(name: str) -> dict[str, Any]:
    return _UNIONS[name].json_schema() if name in _UNIONS else _MODELS[name].model_json_schema()


def schema_text(name: str) -> str:
    """Text of one schema file. Keys are sorted, so that equal models give equal bytes."""
    return json.dumps(_schema(name), indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write all schema files to the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m trainyard.models.schemas FOLDER\n")
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in schemas():
        (folder / f"{name}.schema.json").write_text(schema_text(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
