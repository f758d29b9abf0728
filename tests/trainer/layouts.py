"""`torchrun -m tests.trainer.layouts FILE`: several runs of the trainer, one after the other, by the same processes.

FILE is JSON: the folder of each run to its configuration. New processes for each would take ten times as long.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from trainer.loop import train
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig


def main() -> None:
    dist.init_process_group("gloo")
    for folder, given in json.loads(Path(sys.argv[1]).read_text()).items():
        places = {
            "CHECKPOINT_URI": f"{folder}/checkpoints",
            "RESULTS_URI": f"{folder}/results",
            "METRICS_DIR": f"{folder}/metrics",
        }
        train(TrainerConfig.model_validate(given), Environment.read(os.environ | places))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
