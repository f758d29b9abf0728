"""Evaluate an exported model on the held-out samples of a dataset: `python -m trainer evaluate MODEL DATA`.

Runs in one process, on a GPU if there is one, and needs memory for the whole model.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from trainer.data import Data, open_data
from trainer.data.index import read_index
from trainer.export.model_config import build_empty_model
from trainer.models.decoder import Decoder
from trainer.models.pretrained import PATH_KEY, open_model_storage
from trainer.models.pretrained_weights import load_weights
from trainer.settings import Environment, resolve_model
from trainer.storage import open_storage
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import IGNORED, DecoderConfig
from trainyard.errors import InputError, Problem
from trainyard.log import configure_logging
from trainyard.models.dataset import TokenDataset

_UNSUPPORTED = ("model_type_unsupported", "model_feature_unsupported")  # codes of models that the decoder can't compute


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of a model on held-out samples."""

    samples: int
    targets: int  # tokens with a loss
    loss: float  # mean over the targets, nats
    token_accuracy: float  # share of targets that are the most probable token
    responses: int | None  # of conversations; None for text
    exact_match: float | None  # share of responses that greedy decoding writes exactly


@dataclass
class _Sums:
    targets: int = 0
    loss: float = 0.0
    correct: int = 0
    responses: int = 0
    exact: int = 0

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Add a sample. logits: (length, vocabulary), targets: (length,).

        Greedy decoding writes a response exactly if each of its tokens is the most probable one after the prompt and
        the tokens before it: no text needs to be generated.
        """
        counted = targets != IGNORED
        self.targets += int(counted.sum())
        self.loss += float(functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum"))
        correct = (logits.argmax(-1) == targets) & counted
        self.correct += int(correct.sum())
        starts = counted & ~functional.pad(counted, (1, -1))
        responses = starts.cumsum(0)[counted] - 1  # the response of each target
        if len(responses):
            wrong = torch.zeros(int(responses[-1]) + 1, dtype=torch.int64, device=responses.device)
            wrong.index_add_(0, responses, (~correct[counted]).long())
            self.responses += len(wrong)
            self.exact += int((wrong == 0).sum())


@torch.no_grad()
def evaluate(module: Decoder, data: Data, samples: int, device: torch.device) -> Evaluation:
    """Return the metrics of a whole model on the first `samples` held-out samples, one at a time."""
    module.eval()
    sums = _Sums()
    for batch in data.held_out_batches(samples):
        tokens, targets, *documents = (tensor.to(device) for tensor in batch)
        logits = module(tokens, None, *documents)
        sums.add(logits[0], targets[0])
    total = max(1, sums.targets)
    has_responses = data.has_conversations
    return Evaluation(
        samples=samples,
        targets=sums.targets,
        loss=sums.loss / total,
        token_accuracy=sums.correct / total,
        responses=sums.responses if has_responses else None,
        exact_match=sums.exact / max(1, sums.responses) if has_responses else None,
    )


def load_model(model: DecoderConfig, device: torch.device) -> Decoder:
    """Return the decoder with the weights at `model.path`: bfloat16 on a GPU, float32 on a CPU."""
    assert model.path is not None, "the command configures a path"
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    module = build_empty_model(model, device=device, dtype=dtype).to(device)  # also the buffers
    assert isinstance(module, Decoder)
    load_weights(module, open_model_storage(model.path))
    return module


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 1 if reading fails. Raises InputError for a model or data that do not fit."""
    parser = argparse.ArgumentParser(prog="trainer evaluate", description="Evaluate a model on held-out samples.")
    parser.add_argument("model", metavar="MODEL", help="folder, s3:// URI or hub name of a model")
    parser.add_argument("data", metavar="DATA", help="folder or s3:// URI of a dataset")
    parser.add_argument("--samples", type=_integer_from(1), help="number of held-out samples; default: all")
    parser.add_argument(
        "--sequence-length", type=_integer_from(2), help="tokens per sample; default: that of the dataset's rows"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    configure_logging("trainer")
    try:
        result = _evaluate(options)
    except InputError as error:  # keys of a configuration are the arguments of this command
        names = {PATH_KEY: "MODEL", "DATA_URI": "DATA", "config.model.sequence_length": "--sequence-length"}
        other = "Evaluate it with lm-eval if it is a model of transformers"
        problems = [
            replace(each, key=names.get(each.key, each.key), fix=other if each.code in _UNSUPPORTED else each.fix)
            for each in error.problems
        ]
        raise InputError(problems) from None
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(result)) if options.json else _describe(result))
    return 0


def _evaluate(options: argparse.Namespace) -> Evaluation:
    length = options.sequence_length or _sequence_length(options.data)
    model = {"path": options.model, "weights": True, "sequence_length": length}
    settings = {"model": model, "batch_size": 1, "micro_batch_size": 1}
    config = resolve_model(TrainerConfig.model_validate(settings))
    assert isinstance(config.model, DecoderConfig)
    paths = {"DATA_URI": options.data, "CHECKPOINT_URI": ".", "RESULTS_URI": "."}
    environment = Environment.read({name: value for name, value in os.environ.items() if "RANK" not in name} | paths)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = open_data(config, environment, rank=0, ranks=1)
    try:
        data.require_vocabulary_fits(config.model.vocabulary, config.model)
        samples = min(options.samples or data.held_out_samples, data.held_out_samples)
        return evaluate(load_model(config.model, device), data, samples, device)
    finally:
        data.close()


def _integer_from(minimum: int) -> Callable[[str], int]:
    """Return the type of an argument: an integer that is not smaller."""

    def integer(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"must be {minimum} or more")
        return number

    return integer


def _sequence_length(uri: str) -> int:
    storage = open_storage(uri, "DATA")
    storage.require()
    index = read_index(storage)
    if isinstance(index, TokenDataset) and index.row_tokens is not None:
        return index.row_tokens - 1
    reason = "has no rows of conversations, which would set the number of tokens per sample"
    raise InputError([Problem("DATA", uri, reason, "Set --sequence-length", "sequence_length_missing")])


def _describe(result: Evaluation) -> str:
    text = f"loss {result.loss:.4f}, token accuracy {result.token_accuracy:.1%} of {result.targets} tokens"
    if result.exact_match is not None:
        text += f", exact match {result.exact_match:.1%} of {result.responses} responses"
    return f"{text} in {result.samples} samples"
