"""Export the weights of a checkpoint: `python -m trainer.export CHECKPOINT_URI TARGET [--int8]`.

Runs in one process without GPUs. The exported weights are the fp32 weights of the optimizer.
"""

import argparse
import json
import sys

from pydantic import TypeAdapter, ValidationError

from trainer.checkpoints.reader import read_state_dict
from trainer.export.int8_export import export_int8
from trainer.export.model_config import build_empty_model, export_format, shared_names
from trainer.export.model_files import copy_model_files
from trainer.export.safetensors_export import export_checkpoint, load_exported_weights
from trainer.storage import open_storage
from trainyard.config.training.models import ModelConfig
from trainyard.errors import InputError, Problem
from trainyard.log import configure_logging


def export(uri: str, target: str, *, int8: bool, tokenizer: str | None = None, dtype: str | None = None) -> None:
    """Export the checkpoint at `uri` to `target`.

    `tokenizer`: location of the tokenizer's files, such as the dataset. `dtype`: type of the weights; None: float32.
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
    format = export_format(shape, dtype=dtype)
    rename = format.rename
    shared = shared_names(shape)
    export_checkpoint(source.uri, format.config, storage, rename=rename, dtype=format.dtype, shared=shared)
    if tokenizer is not None:
        copy_model_files(storage, "", open_storage(tokenizer, "--tokenizer"), None, {})
    if int8:
        model = build_empty_model(shape)
        load_exported_weights(model, storage, rename=rename, folder="")
        export_int8(model, format.int8_config(), storage, rename=rename, folder="int8/")


def main() -> int:
    """Run the program. Returns 0 on success, 1 if reading or writing fails and 2 for a user error."""
    parser = argparse.ArgumentParser(prog="trainer.export", description="Export a checkpoint's weights as safetensors.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="folder or s3:// URI of one checkpoint")
    parser.add_argument("target", metavar="TARGET", help="folder or s3:// URI to write to")
    parser.add_argument("--int8", action="store_true", help="also export int8 linear layers, to TARGET/int8/")
    parser.add_argument("--tokenizer", metavar="URI", help="copy the tokenizer's files from here, such as the dataset")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="type of the weights")
    arguments = parser.parse_args()
    configure_logging("trainer")
    try:
        export(
            arguments.checkpoint,
            arguments.target,
            int8=arguments.int8,
            tokenizer=arguments.tokenizer,
            dtype=arguments.dtype,
        )
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
