"""Losses of parallel layouts and of one process, with the same seed and batch, in fp32 on CPUs.

Cases: documents (masked attention between lines of text), conversations (fine-tuning: loss on the responses, packed
rows; with and without LoRA) and experts. Their layouts are those of the tests. A row has the last training loss, and
the largest difference of a training loss from that of one process, over all steps.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from tests.trainer import test_fine_tuning as fine_tuning
from tests.trainer.conftest import write_dataset
from tests.trainer.layouts import read_metrics, run_layouts
from tests.trainer.parallelism import test_expert_layouts as experts
from tests.trainer.parallelism import test_layouts as documents

Configs = Mapping[int, Mapping[str, Any]]  # number of processes -> name of a layout -> configuration


def _cases(folder: Path) -> Iterator[tuple[str, Path, Configs]]:
    """Yield name, dataset and configurations of each case."""
    text = write_dataset(folder / "text", end=ord("\n"))
    yield (
        "documents",
        text,
        {
            processes: {name: documents.config(changes) for name, changes in layouts.items()}
            for processes, layouts in documents.LAYOUTS.items()
        },
    )
    model = fine_tuning.create_files(folder)
    yield (
        "conversations",
        folder / "data",
        {
            processes: {
                name: fine_tuning.configuration(model, changes) for name, changes in runs.items() if name != "lora-bf16"
            }
            for processes, runs in fine_tuning.RUNS.items()
        },
    )
    yield (
        "experts",
        text,
        {
            processes: {name: experts.config(**changes) for name, changes in layouts.items()}
            for processes, layouts in experts.LAYOUTS.items()
        },
    )


def _measure(folder: Path, data: Path, configs: Configs) -> Iterator[dict[str, Any]]:
    """Train each layout; yield its last loss, and the largest difference from one process."""
    variables = {"PYTHONPATH": str(ROOT), "DATA_URI": str(data), "TRAINYARD_CACHE": str(folder / "cache")}
    for processes, each in configs.items():
        run_layouts(folder, processes, each, os.environ | variables)
        for name in each:
            losses = [line["loss"] for line in read_metrics(folder / name)]
            reference = name.split("-")[0] if name.split("-")[0] in configs[1] else "single"
            single = [line["loss"] for line in read_metrics(folder / reference)]
            difference = max(abs(own - other) for own, other in zip(losses, single, strict=True))
            yield {"layout": name, "ranks": processes, "loss": losses[-1], "difference": difference}


def main(as_json: AsJson = False) -> None:
    """Print a line for each layout of each case."""
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="layouts-") as temporary:
        for case, data, configs in _cases(Path(temporary)):
            (folder := Path(temporary, case)).mkdir()
            results[case] = []
            for row in _measure(folder, data, configs):
                results[case].append(row)
                if not as_json:
                    numbers = f"{row['ranks']} | {row['loss']:.6f} | {row['difference']:.1e}"
                    typer.echo(f"| {case} | {row['layout']} | {numbers} |")
    if as_json:
        typer.echo(json.dumps(results))


if __name__ == "__main__":
    typer.run(main)
