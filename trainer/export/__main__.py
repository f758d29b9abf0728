"""`python -m trainer.export CHECKPOINT_URI TARGET [--int8]`: the weights of one checkpoint as safetensors.

In a process of its own, without GPUs or other ranks. The weights are the fp32 ones that the optimizer changes.
"""

import argparse
import json
import sys

from pydantic import TypeAdapter, ValidationError

from trainer.checkpoints.reader import load_whole
from trainer.export.int8 import export_int8
from trainer.export.shape import config_of, empty, int8_config_of, prefix_of, shared_names
from trainer.export.weights import export_checkpoint, fill_from
from trainer.storage import open_storage
from trainyard.base import InputError, Problem
from trainyard.config.training.models import ModelConfig


def export(uri: str, target: str, *, int8: bool) -> None:
    """Raises InputError where there is no such place, OSError where the checkpoint can't be read."""
    source, storage = open_storage(uri, "CHECKPOINT_URI"), open_storage(target, "TARGET")
    source.require()
    storage.require(make=True)
    try:
        shape = TypeAdapter[ModelConfig](ModelConfig).validate_json(load_whole(source.uri, {"shape"})["shape"])
    except (KeyError, ValidationError):
        raise InputError(
            [Problem(key="CHECKPOINT_URI", value=uri, why="is not a checkpoint of this trainer", fix="Name one")]
        ) from None
    own, prefix = config_of(shape), prefix_of(shape)
    export_checkpoint(source.uri, own, storage, prefix=prefix, shared=shared_names(shape))
    if int8:
        model = empty(shape)
        fill_from(model, storage, prefix=prefix, folder="")
        export_int8(model, int8_config_of(shape, own), storage, prefix=prefix, folder="int8/")


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainer.export", description="A checkpoint's weights as safetensors.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="folder or s3:// of one checkpoint")
    parser.add_argument("target", metavar="TARGET", help="folder or s3:// to write to")
    parser.add_argument("--int8", action="store_true", help="also the linear layers in 8 bits, under TARGET/int8/")
    arguments = parser.parse_args()
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
