"""The shipped stack files, for accounts without data."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def read_stack_file(stack: str, root: Path = ROOT) -> dict[str, Any]:
    """Return the configuration of a shipped stack with the built-in corpus: the account has no data of the user.

    A model that the job reads is replaced by one with new weights. `root`: the source tree.
    """
    config: dict[str, Any] = yaml.safe_load((root / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    job = config["trainyard:cluster"]["job"]
    if "dataset" in job:
        job["builtin_corpus"] = True
    if job.pop("model", None) is not None:
        job["train"].pop("lora", None)
        for key in ("path", "weights"):
            job["train"]["model"].pop(key)
    return config
