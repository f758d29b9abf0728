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
from trainer.export.safetensors_export import (
    export_adapted_checkpoint,
    export_checkpoint,
    load_exported_weights,
)
from trainer.models.pretrained_weights import SafetensorsReader
from trainer.storage import Storage, open_storage
from trainyard.config.training.config import LoraConfig
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.errors import InputError, Problem
from trainyard.log import configure_logging


def export(
    uri: str,
    target: str,
    *,
    int8: bool,
    tokenizer: str | None = None,
    dtype: str | None = None,
    base: str | None = None,
) -> None:
    """Export the checkpoint at `uri` to `target`.

    `tokenizer`: location of the tokenizer's files, such as the dataset. `dtype`: type of the weights; None: float32, or
    that of `base`. `base`: location of the model that was adapted (LoRA). Raises InputError for an invalid location,
    OSError if the checkpoint cannot be read.
    """
    source, storage = open_storage(uri, "CHECKPOINT_URI"), open_storage(target, "TARGET")
    source.require()
    storage.require(create=True)
    model, lora = _read_shape(source)
    if (lora is None) != (base is None):
        reason = "has low-rank matrices, and not the weights that they adapt" if lora else "has no low-rank matrices"
        fix = "Name the location of the model with --base" if lora else "Remove --base"
        raise InputError(
            [Problem("CHECKPOINT_URI", uri, reason, fix, "base_model_missing" if lora else "base_not_used")]
        )
    base_storage = None if base is None else open_storage(base, "--base")
    if base_storage is not None:
        base_storage.require()
    if base is not None and isinstance(model, DecoderConfig):
        model = model.model_copy(update={"path": base})
    format = export_format(model, dtype=dtype)
    rename, type = format.rename, format.dtype
    if lora is None or base_storage is None:
        export_checkpoint(source.uri, format.config, storage, rename=rename, dtype=type, shared=shared_names(model))
    else:
        reader = SafetensorsReader(base_storage)
        export_adapted_checkpoint(source.uri, format.config, storage, reader, lora, rename=rename, dtype=type)
    tokenizer_storage = None if tokenizer is None else open_storage(tokenizer, "--tokenizer")
    copy_model_files(storage, "", tokenizer_storage, base_storage, {})
    if int8:
        whole = build_empty_model(model)
        load_exported_weights(whole, storage, rename=rename, folder="")
        export_int8(whole, format.int8_config(), storage, rename=rename, folder="int8/")


def _read_shape(source: Storage) -> tuple[ModelConfig, LoraConfig | None]:
    """Return the model's configuration in a checkpoint. Raises InputError if it is not one of this trainer."""
    try:
        shape = json.loads(read_state_dict(source.uri, {"shape"})["shape"])
        lora = shape.pop("lora", None)
        model = TypeAdapter[ModelConfig](ModelConfig).validate_python(shape)
        return model, None if lora is None else LoraConfig.model_validate(lora)
    except (KeyError, ValidationError):
        reason, fix = "is not a checkpoint of this trainer", "Set it to the URI of a checkpoint"
        raise InputError([Problem("CHECKPOINT_URI", source.uri, reason, fix, "not_a_checkpoint")]) from None


def main() -> int:
    """Run the program. Returns 0 on success, 1 if reading or writing fails and 2 for a user error."""
    parser = argparse.ArgumentParser(prog="trainer.export", description="Export a checkpoint's weights as safetensors.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="folder or s3:// URI of one checkpoint")
    parser.add_argument("target", metavar="TARGET", help="folder or s3:// URI to write to")
    parser.add_argument("--int8", action="store_true", help="also export int8 linear layers, to TARGET/int8/")
    parser.add_argument("--tokenizer", metavar="URI", help="copy the tokenizer's files from here, such as the dataset")
    parser.add_argument("--base", metavar="URI", help="folder or s3:// URI of the base model, for a checkpoint of LoRA")
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
            base=arguments.base,
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
