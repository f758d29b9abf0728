"""Several runs of the trainer in the same processes: `torchrun -m tests.trainer.layouts FILE`.

FILE is a JSON object: folder of a run -> its configuration. Separate processes would take ten times as long.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from trainer.loop import train
from trainer.settings import Environment, resolve_model
from trainyard.config.training import TrainerConfig


def main() -> None:
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
