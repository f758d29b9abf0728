"""Check that checkpoints can be loaded, in a separate process: `python -m trainer.check_checkpoint URI ...`."""

import json
import sys

import torch

from trainer.checkpoints.reader import read_state_dict
from trainer.storage import open_storage
from trainyard.errors import InputError
from trainyard.log import configure_logging


def check(uri: str) -> dict[str, object]:
    """Load a checkpoint and return its step and number of parameters.

    Raises OSError for an incomplete or unreadable checkpoint, ValueError for a checkpoint that no run can resume from.
    """
    storage = open_storage(uri, "URI")
    storage.require()
    content = read_state_dict(storage.uri)
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    not_finite = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
    if not_finite:
        raise ValueError(f"{storage.uri}: values are not finite: {', '.join(not_finite)}")
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("model."))
    if not parameters or "progress.step" not in content:
        raise ValueError(f"{storage.uri}: not a checkpoint of this trainer")
    return {"uri": storage.uri, "step": content["progress.step"], "parameters": parameters, "loadable": True}


def main() -> int:
    """Check each URI and print one JSON line for it. Returns 0 if all are loadable, 1 if not, 2 for a user error."""
    if len(sys.argv) < 2:
        print("usage: python -m trainer.check_checkpoint URI ...", file=sys.stderr)
        return 2
    configure_logging("trainer")
    exit_status = 0
    for uri in sys.argv[1:]:
        try:
            print(json.dumps(check(uri)), flush=True)
        except (InputError, OSError, ValueError) as error:
            print(json.dumps({"uri": uri, "loadable": False, "error": str(error)}), flush=True)
            exit_status = max(exit_status, 2 if isinstance(error, InputError) else 1)
    return exit_status


if __name__ == "__main__":
    raise SystemExit(main())
