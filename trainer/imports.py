"""The imports of a rank, for processes that wait to become one."""

import importlib
import os

# Those up to the first step, also those that torch makes when it first uses a function.
_MODULES = ("torch._dynamo", "torch.utils.tensorboard", "trainer.__main__", "trainer.loop")


def import_rank_modules() -> None:
    """Import what a rank needs. Takes seconds."""
    names = [*_MODULES]
    if os.environ.get("CHECKPOINT_URI", "").startswith("s3://"):
        names.append("trainer.checkpoints.s3")
    for name in names:
        importlib.import_module(name)
