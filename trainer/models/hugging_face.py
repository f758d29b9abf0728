"""Causal and masked language models of the library transformers."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from trainer.models.built import Model, repeated
from trainer.models.loss import next_token_loss
from trainer.telemetry.flops import language_model_flops
from trainyard.base import InputError, Problem
from trainyard.config.training.models import HuggingFaceConfig
from trainyard.config.training.presets import HUGGING_FACE

# What transformers and torch raise where they can't make a model of what they are given.
_REFUSALS = (ValueError, TypeError, OSError, AttributeError, RuntimeError, StrictDataclassError)

_SLIP = 0.9  # of difflib's ratio: num_hidden_layer for num_hidden_layers, and not position_embedding_type for anything


class LanguageModel(nn.Module):
    """Called with (batch, length) tokens and targets, which are the next tokens or, where masked, the hidden ones."""

    def __init__(self, model: nn.Module, loss_chunk: int | None) -> None:
        super().__init__()
        self.model = model
        self.loss_chunk = loss_chunk
        self.plain = _ends_in_its_last_layer(model)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        inner: Any = self.model
        if self.plain:
            head = inner.get_output_embeddings()
            hidden = _before(head, inner, tokens)
            return next_token_loss(hidden.to(head.weight.dtype), head.weight, targets, self.loss_chunk, bias=head.bias)
        logits: Tensor = inner(input_ids=tokens).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def language_model(config: HuggingFaceConfig, loss_chunk: int | None) -> Model:
    """The model with fresh weights or those of `config.path`. Raises InputError where it can't be made."""
    shape, maker = library_config(config), maker_of(config)
    try:
        if config.weights:
            assert config.path is not None, "the configuration was checked"
            inner = maker.from_pretrained(
                config.path, config=shape, dtype=torch.float32, local_files_only=True, use_safetensors=True
            )
        else:
            inner = maker.from_config(shape, dtype=torch.float32)
    except _REFUSALS as error:
        raise _unmade(config, error) from None
    module = LanguageModel(inner, loss_chunk)
    return Model(
        module=module,
        blocks=dict(repeated(module)),
        initialize=None,
        vocabulary=shape.vocab_size,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=_flops(inner, shape, config),
    )


def maker_of(config: HuggingFaceConfig) -> Any:
    """What of transformers makes models of the task."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForCausalLM if config.task == "causal" else AutoModelForMaskedLM


def library_config(config: HuggingFaceConfig) -> Any:
    """The model's configuration, as transformers has it. Raises InputError where there is none, or it does not fit."""
    from transformers import AutoConfig

    own = _own(config)
    try:
        if config.path is not None:
            if not (Path(config.path) / "config.json").is_file():
                raise _refused("path", config.path, "there is no config.json", "Name the folder of a model")
            shape = AutoConfig.from_pretrained(config.path, local_files_only=True, trust_remote_code=False, **own)
        else:
            shape = AutoConfig.for_model(**own)
        _require_known(config.config, type(shape))
    except InputError:
        raise
    except _REFUSALS as error:
        raise _unmade(config, error) from None
    length = getattr(shape, "max_position_embeddings", None)
    if isinstance(length, int) and config.sequence_length > length:
        why = f"is longer than the {length} positions of the model (max_position_embeddings)"
        raise _refused("sequence_length", config.sequence_length, why, "Shorten it, or raise that key in config")
    shape.use_cache = False
    return shape


def _require_known(own: Mapping[str, Any], kind: Any) -> None:
    """Raises InputError for keys that are slips of ones the library has. Others that it does not list may well be read
    by a model's code, or be left from an older version: published configurations are full of them."""
    plain = kind()
    known = {*plain.to_dict(), *plain.attribute_map}
    problems = []
    for key, value in own.items():
        near = get_close_matches(key, known - own.keys(), 1, _SLIP)
        # A former name that is still understood is not kept as it is.
        if near and not hasattr(plain, key) and key in kind(**{key: value}).to_dict():
            why = f"{kind.__name__} of transformers knows no such key and would ignore it"
            problems.append(Problem(key=f"config.model.config.{key}", value=value, why=why, fix=f"Write {near[0]}"))
    if problems:
        raise InputError(problems)


def _own(config: HuggingFaceConfig) -> dict[str, Any]:
    return {**(HUGGING_FACE[config.preset]["config"] if config.preset else {}), **config.config}


def _unmade(config: HuggingFaceConfig, error: Exception) -> InputError:
    key, value = ("path", config.path) if config.path else ("config", _own(config))
    words = " ".join(str(error).split())[:300].rstrip(".")
    return _refused(key, value, f"transformers makes no {config.task} language model of it: {words}", "Mend it")


def _flops(model: nn.Module, shape: Any, config: HuggingFaceConfig) -> float | None:
    try:
        each = language_model_flops(model, shape, config.sequence_length, causal=config.task == "causal")
    except AttributeError:  # a shape of its own
        return None
    return each * config.sequence_length


def _refused(key: str, value: Any, why: str, fix: str) -> InputError:
    return InputError([Problem(key=f"config.model.{key}", value=value, why=why, fix=fix)])


def _before(head: nn.Module, model: Any, tokens: Tensor) -> Tensor:
    """What the model gives its last layer, whatever comes before it: BERT's has a layer more than the hidden states."""
    head.forward = _as_it_is
    try:
        found: Tensor = model(input_ids=tokens).logits
    finally:
        del head.forward  # the class's own is back
    return found


def _as_it_is(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def _ends_in_its_last_layer(model: Any) -> bool:
    """Whether its logits are what its last linear layer gives, and nothing is done to them: tried, by two tokens."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    tokens = torch.tensor([[0, 1]])
    # A bias starts at zero, and would not show, wherever it is added.
    biases = [each for each in model.parameters() if each.shape == (head.out_features,)]
    kept = [each.clone() for each in biases]
    training = model.training
    model.eval()
    head.weight *= 1024  # exactly, there and back: what bends logits shows where they are large
    try:
        for each in biases:
            each.copy_(torch.linspace(-1, 1, len(each)))
        found = nn.functional.linear(_before(head, model, tokens), head.weight, head.bias)
        return torch.allclose(found, model(input_ids=tokens).logits, rtol=1e-4, atol=1e-5)
    except RuntimeError:  # what follows the last layer takes logits only
        return False
    finally:
        head.weight /= 1024
        for each, own in zip(biases, kept, strict=True):
            each.copy_(own)
        model.train(training)
