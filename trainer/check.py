"""`python -m trainer.check URI`: load one checkpoint whole in a process of its own, and say what it is."""

import json
import sys

import torch

from trainer.checkpoints.reader import load_whole
from trainer.storage import open_storage
from trainyard.base import InputError


def check(uri: str) -> dict[str, object]:
    """Raises OSError for a checkpoint that is incomplete or can't be read, ValueError for one no run could resume."""
    storage = open_storage(uri, "URI")
    storage.require()
    content = load_whole(storage.uri)
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    spoilt = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
    if spoilt:
        raise ValueError(f"{storage.uri}: not finite: {', '.join(spoilt)}")
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("model."))
    if not parameters or "progress.step" not in content:
        raise ValueError(f"{storage.uri}: not a checkpoint of this trainer")
    return {"uri": storage.uri, "step": content["progress.step"], "parameters": parameters, "loadable": True}


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m trainer.check URI", file=sys.stderr)
        return 2
    try:
        print(json.dumps(check(sys.argv[1])))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
