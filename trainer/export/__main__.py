"""Export the weights of a checkpoint: `python -m trainer.export CHECKPOINT_URI TARGET [--int8]`.

Runs in one process without GPUs. The exported weights are the fp32 weights of the optimizer.
"""

import argparse
import json
import sys

from pydantic import TypeAdapter, ValidationError

from trainer.checkpoints.reader import read_state_dict
from trainer.export.int8_export import export_int8
from trainer.export.model_config import (
    build_empty_model,
    build_export_config,
    build_int8_config,
    name_prefix,
    shared_names,
)
from trainer.export.safetensors_export import export_checkpoint, load_exported_weights
from trainer.storage import open_storage
from trainyard.config.training.models import ModelConfig
from trainyard.errors import InputError, Problem
from trainyard.log import configure_logging


def export(uri: str, target: str, *, int8: bool) -> None:
    """Export the checkpoint at `uri` to `target`.

    Raises InputError for an invalid location, OSError if the checkpoint cannot be read.
    """
    source, storage = open_storage(uri, "CHECKPOINT_URI"), open_storage(target, "TARGET")
    source.require()
    storage.require(create=True)
    try:
        shape = TypeAdapter[ModelConfig](ModelConfig).validate_json(read_state_dict(source.uri, {"shape"})["shape"])
    except (KeyError, ValidationError):
        reason, fix = "is not a checkpoint of this trainer", "Set it to the URI of a checkpoint"
        raise InputError([Problem("CHECKPOINT_URI", uri, reason, fix, "not_a_checkpoint")]) from None
    export_config, prefix = build_export_config(shape), name_prefix(shape)
    export_checkpoint(source.uri, export_config, storage, prefix=prefix, shared=shared_names(shape))
    if int8:
        model = build_empty_model(shape)
        load_exported_weights(model, storage, prefix=prefix, folder="")
        export_int8(model, build_int8_config(shape, export_config), storage, prefix=prefix, folder="int8/")


def main() -> int:
    """Run the program. Returns 0 on success, 1 if reading or writing fails and 2 for a user error."""
    parser = argparse.ArgumentParser(prog="trainer.export", description="Export a checkpoint's weights as safetensors.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="folder or s3:// URI of one checkpoint")
    parser.add_argument("target", metavar="TARGET", help="folder or s3:// URI to write to")
    parser.add_argument("--int8", action="store_true", help="also export int8 linear layers, to TARGET/int8/")
    arguments = parser.parse_args()
    configure_logging("trainer")
    try:
        export(arguments.checkpoint, arguments.target, int8=arguments.int8)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"uri": arguments.checkpoint, "target": arguments.target}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
