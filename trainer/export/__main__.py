"""Export the weights of a checkpoint: `python -m trainer.export CHECKPOINT_URI TARGET [--int8]`.

Runs in one process without GPUs. The exported weights are the fp32 weights of the optimizer.
"""

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer.checkpoints.reader import read_state_dict
from trainer.export.int8_export import export_int8
from trainer.export.model_config import build_empty_model, export_format, shared_names
from trainer.export.model_files import copy_model_files, special_tokens_of
from trainer.export.safetensors_export import (
    export_adapted_checkpoint,
    export_checkpoint,
    load_exported_weights,
)
from trainer.models.pretrained import resolve_decoder
from trainer.models.pretrained_weights import SafetensorsReader
from trainer.storage import Storage, open_storage
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.errors import InputError, Problem
from trainyard.log import configure_logging

_OTHER_BASE = "Name the model from which the training started"


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
    that of `base`. `base`: location of the model that was trained further, whose files are copied; for LoRA also its
    weights. Raises InputError for an invalid location, OSError if the checkpoint cannot be read.
    """
    source, storage = open_storage(uri, "CHECKPOINT_URI"), open_storage(target, "TARGET")
    source.require()
    storage.require(create=True)
    model, lora = _read_shape(source)
    if int8 and isinstance(model, DecoderConfig) and model.experts is not None:
        reason = "is for linear layers, and the experts of this model have most of its weights"
        raise InputError([Problem("--int8", True, reason, "Remove it", "experts_unsupported")])
    tokenizer_storage = None if tokenizer is None else open_storage(tokenizer, "--tokenizer")
    if lora is not None and base is None:
        reason = "has low-rank matrices, and not the weights that they adapt"
        fix = "Name the location of the model with --base"
        raise InputError([Problem("CHECKPOINT_URI", uri, reason, fix, "base_model_missing")])
    if base is not None:
        model = _with_base(model, base)
    special_tokens = {} if tokenizer_storage is None else special_tokens_of(tokenizer_storage)
    format = export_format(model, special_tokens, dtype)
    rename, type = format.rename, format.dtype
    base_storage = None
    if isinstance(model, DecoderConfig) and model.path is not None:
        base_storage = open_storage(model.path, "--base")
    if lora is None or base_storage is None:
        export_checkpoint(source.uri, format.config, storage, rename=rename, dtype=type, shared=shared_names(model))
    else:
        reader = SafetensorsReader(base_storage)
        _require_same_base(reader, base_storage, lora)
        scaling = lora["alpha"] / lora["rank"]
        export_adapted_checkpoint(source.uri, format.config, storage, reader, scaling, rename=rename, dtype=type)
    copy_model_files(storage, "", tokenizer_storage, base_storage, special_tokens)
    if int8:
        whole = build_empty_model(model)
        load_exported_weights(whole, storage, rename=rename, folder="")
        export_int8(whole, format.int8_config(), storage, rename=rename, folder="int8/")


def _read_shape(source: Storage) -> tuple[ModelConfig, dict[str, Any] | None]:
    """Return the model's configuration in a checkpoint, and that of LoRA with the fingerprint of the base model.

    Raises InputError if it is not a checkpoint of this trainer.
    """
    try:
        shape = json.loads(read_state_dict(source.uri, {"shape"})["shape"])
        lora: dict[str, Any] | None = shape.pop("lora", None)
        return TypeAdapter[ModelConfig](ModelConfig).validate_python(shape), lora
    except (KeyError, ValidationError):
        reason, fix = "is not a checkpoint of this trainer", "Set it to the URI of a checkpoint"
        raise InputError([Problem("CHECKPOINT_URI", source.uri, reason, fix, "not_a_checkpoint")]) from None


def _with_base(model: ModelConfig, base: str) -> ModelConfig:
    """Return the model of a checkpoint with `base` as its path. Raises InputError if the base has another shape."""
    if not isinstance(model, DecoderConfig):
        reason, fix = f"is for the decoder, and this model is of kind {model.kind}", "Remove it"
        raise InputError([Problem("--base", base, reason, fix, "base_not_used")])
    try:
        resolved = resolve_decoder(DecoderConfig(path=base, weights=True, sequence_length=model.sequence_length))
    except InputError as error:
        raise InputError([replace(problem, key="--base") for problem in error.problems]) from None
    trained, actual = model.shape, resolved.shape
    differences = [key for key in trained if key != "preset" and trained[key] != actual.get(key)]
    if differences:
        key = differences[0]
        reason = f"has {key} {actual.get(key)!r}, and the checkpoint {trained[key]!r}"
        raise InputError([Problem("--base", base, reason, _OTHER_BASE, "base_model_mismatch")])
    return resolved


def _require_same_base(reader: SafetensorsReader, storage: Storage, lora: dict[str, Any]) -> None:
    if reader.fingerprint() != lora["base"]:
        reason = "has other weights than the model to which the checkpoint adapts"
        raise InputError([Problem("--base", storage.uri, reason, _OTHER_BASE, "base_model_mismatch")])


def main() -> int:
    """Run the program. Returns 0 on success, 1 if reading or writing fails and 2 for a user error."""
    parser = argparse.ArgumentParser(prog="trainer.export", description="Export a checkpoint's weights as safetensors.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT_URI", help="folder or s3:// URI of one checkpoint")
    parser.add_argument("target", metavar="TARGET", help="folder or s3:// URI to write to")
    parser.add_argument("--int8", action="store_true", help="also export int8 linear layers, to TARGET/int8/")
    parser.add_argument("--tokenizer", metavar="URI", help="copy the tokenizer's files from here, such as the dataset")
    parser.add_argument(
        "--base",
        metavar="URI",
        help="folder, s3:// URI or hub name of the model in model.path of the training: its config.json, "
        "tokenizer and, for LoRA, weights",
    )
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
