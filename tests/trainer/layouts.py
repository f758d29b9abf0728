"""Several runs of the trainer in the same processes: `torchrun -m tests.trainer.layouts FILE`.

FILE is a JSON object: folder of a run -> its configuration. Separate processes would take ten times as long.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.loop import train
from trainer.models.registry import MODELS
from trainer.settings import Environment, resolve_model
from trainyard.config.training import TrainerConfig


def run_layouts(folder: Path, processes: int, configs: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Start the processes, which do one run after the other. `configs`: name of the run's folder -> configuration."""
    file = folder / "runs.json"
    file.write_text(json.dumps({str(folder / name): config for name, config in configs.items()}))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    process = subprocess.run(
        [*torchrun, "-m", "tests.trainer.layouts", str(file)],
        env={**environment, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run."""
    return [json.loads(line) for line in (folder / "metrics/metrics.jsonl").read_text().splitlines()]


def main() -> None:
    MODELS["convolutions"] = "tests.trainer.models.convolutions:ConvolutionalModel"
    dist.init_process_group("gloo")
    for folder, config in json.loads(Path(sys.argv[1]).read_text()).items():
        variables = {
            "CHECKPOINT_URI": f"{folder}/checkpoints",
            "RESULTS_URI": f"{folder}/results",
            "METRICS_DIR": f"{folder}/metrics",
        }
        train(resolve_model(TrainerConfig.model_validate(config)), Environment.read(os.environ | variables))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
