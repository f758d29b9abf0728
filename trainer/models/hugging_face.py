"""Causal and masked language models of the transformers library."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from trainer.models.documents import document_numbers, positions_in_documents
from trainer.models.loss import cross_entropy, next_token_loss
from trainer.models.model import Model, find_blocks, setting_error
from trainer.telemetry.flops import language_model_flops
from trainyard.config.training.models import HuggingFaceConfig
from trainyard.config.training.presets import HUGGING_FACE
from trainyard.errors import InputError, Problem

# Exceptions of transformers and torch for an invalid model configuration.
CONFIG_ERRORS = (ValueError, TypeError, OSError, AttributeError, RuntimeError, StrictDataclassError)

# Minimum ratio of difflib for a misspelled key: matches num_hidden_layer with num_hidden_layers, and
# position_embedding_type with no key.
_MISSPELLING_RATIO = 0.9


class LanguageModel(nn.Module):
    """A transformers model that returns the loss.

    Called with (batch, length) tokens and targets: the next tokens or, for a masked model, the masked tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_chunk_tokens: int | None,
        *,
        causal: bool = True,
        compiles_loss: bool | None = None,
    ) -> None:
        super().__init__()
        self.model, self._is_causal = model, causal
        self._loss_chunk_tokens, self._compiles_loss = loss_chunk_tokens, compiles_loss
        self.has_linear_head = _has_linear_head(model)

    def forward(self, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        """Return the loss, nats per token (`next_token_loss`). `cu_seqlens`: documents, see `document_mask`."""
        inner: Any = self.model
        inputs = self.inputs(tokens, cu_seqlens)
        if self.has_linear_head:
            head = inner.get_output_embeddings()
            hidden = _head_input(head, inner, inputs)
            return next_token_loss(
                hidden.to(head.weight.dtype),
                head.weight,
                targets,
                self._loss_chunk_tokens,
                bias=head.bias,
                compiled=self._compiles_loss,
            )
        return cross_entropy(inner(**inputs).logits, targets)

    def inputs(self, tokens: Tensor, cu_seqlens: Tensor | None) -> dict[str, Tensor]:
        """Return the arguments of the transformers model.

        A causal model masks attention between documents if positions start again (`masking_utils` of transformers).
        """
        if cu_seqlens is None:
            return {"input_ids": tokens}
        if self._is_causal:
            return {"input_ids": tokens, "position_ids": positions_in_documents(cu_seqlens, *tokens.shape)}
        return {"input_ids": tokens, "attention_mask": self._attention_mask(tokens, cu_seqlens)}

    @torch.no_grad()
    def separates_documents(self) -> bool:
        """Whether no token has an effect on other documents: tested with two sequences of two documents.

        A few models ignore positions, have a state that passes from token to token, or apply no window with a mask.
        """
        config = getattr(self.model, "config", None)
        has_window = getattr(config, "sliding_window", None) or getattr(config, "local_attention", None)
        if has_window and not self._is_causal:
            return False
        device = next(self.model.parameters()).device
        tokens = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]], device=device)  # the second documents are equal
        sequences, documents = (torch.arange(0, 9, size, dtype=torch.int32, device=device) for size in (4, 2))
        was_training = self.model.training
        self.model.eval()
        try:
            unmasked, whole, separate = (
                self.model(**self.inputs(tokens, cu_seqlens)).logits for cu_seqlens in (None, sequences, documents)
            )
        except (TypeError, ValueError, RuntimeError, IndexError):  # it does not accept the arguments
            return False
        finally:
            self.model.train(was_training)
        effect, remaining = ((logits[0, 2:] - logits[1, 2:]).abs().max() for logits in (unmasked, separate))
        return bool(remaining <= 1e-3 * effect) and torch.allclose(whole, unmasked, rtol=1e-4, atol=1e-5)

    def _attention_mask(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return a mask (batch, 1, length, length): 0 for tokens that may attend to each other, else the minimum."""
        numbers = document_numbers(cu_seqlens, *tokens.shape).unsqueeze(1)
        allowed = numbers.unsqueeze(-1) == numbers.unsqueeze(-2)
        device = tokens.device.type
        dtype = next(self.model.parameters()).dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        mask = torch.zeros(allowed.shape, dtype=dtype, device=tokens.device)
        return mask.masked_fill_(~allowed, torch.finfo(mask.dtype).min)


def build_language_model(
    config: HuggingFaceConfig, loss_chunk_tokens: int | None, *, compiles_loss: bool | None = None
) -> Model:
    """Build the model with new weights or those of `config.path`. Raises InputError for an invalid configuration."""
    library_config, auto_class = load_transformers_config(config), auto_model_class(config)
    try:
        if config.weights:
            assert config.path is not None, "the configuration is validated"
            inner = auto_class.from_pretrained(
                config.path, config=library_config, dtype=torch.float32, local_files_only=True, use_safetensors=True
            )
        else:
            inner = auto_class.from_config(library_config, dtype=torch.float32)
    except CONFIG_ERRORS as error:
        raise _config_error(config, error) from None
    module = LanguageModel(inner, loss_chunk_tokens, causal=config.task == "causal", compiles_loss=compiles_loss)
    return Model(
        module=module,
        blocks=dict(find_blocks(module)),
        initialize=None,
        vocabulary=library_config.vocab_size,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=_flops(inner, library_config, config),
        separates_documents=module.separates_documents,
    )


def auto_model_class(config: HuggingFaceConfig) -> Any:
    """Return the auto class of transformers for the configured task."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForCausalLM if config.task == "causal" else AutoModelForMaskedLM


def load_transformers_config(config: HuggingFaceConfig) -> Any:
    """Return the model's transformers configuration. Raises InputError if it is missing or invalid."""
    from transformers import AutoConfig

    overrides = _overrides(config)
    try:
        if config.path is not None:
            if not (Path(config.path) / "config.json").is_file():
                raise setting_error(
                    "path", config.path, "has no config.json", "Set it to the folder of a model", "model_config_missing"
                )
            loaded = AutoConfig.from_pretrained(
                config.path, local_files_only=True, trust_remote_code=False, **overrides
            )
        else:
            loaded = AutoConfig.for_model(**overrides)
        _require_known_keys(config.config, type(loaded))
    except InputError:
        raise
    except CONFIG_ERRORS as error:
        raise _config_error(config, error) from None
    length = getattr(loaded, "max_position_embeddings", None)
    if isinstance(length, int) and config.sequence_length > length:
        reason = f"is longer than the {length} positions of the model (max_position_embeddings)"
        raise setting_error(
            "sequence_length",
            config.sequence_length,
            reason,
            "Shorten it, or raise that key in config",
            "sequence_too_long",
        )
    loaded.use_cache = False
    return loaded


def _require_known_keys(overrides: Mapping[str, Any], config_class: Any) -> None:
    """Raise InputError for misspelled keys.

    Other unknown keys are accepted: a model's code may read them, and published configurations have many keys of older
    versions.
    """
    default = config_class()
    known = {*default.to_dict(), *default.attribute_map}
    problems = []
    for key, value in overrides.items():
        matches = get_close_matches(key, known - overrides.keys(), 1, _MISSPELLING_RATIO)
        # A former name that the library still accepts is converted, so the result does not contain it.
        if matches and not hasattr(default, key) and key in config_class(**{key: value}).to_dict():
            reason = f"is not a key of {config_class.__name__} of transformers, which would ignore it"
            problems.append(
                Problem(f"config.model.config.{key}", value, reason, f"Write {matches[0]}", "unknown_model_config_key")
            )
    if problems:
        raise InputError(problems)


def _overrides(config: HuggingFaceConfig) -> dict[str, Any]:
    return {**(HUGGING_FACE[config.preset]["config"] if config.preset else {}), **config.config}


def _config_error(config: HuggingFaceConfig, error: Exception) -> InputError:
    key, value = ("path", config.path) if config.path else ("config", _overrides(config))
    message = " ".join(str(error).split())[:300].rstrip(".")
    reason = f"transformers cannot create a {config.task} language model from it: {message}"
    return setting_error(key, value, reason, "Correct it", "model_config_rejected")


def _flops(model: nn.Module, library_config: Any, config: HuggingFaceConfig) -> float | None:
    try:
        per_token = language_model_flops(model, library_config, config.sequence_length, causal=config.task == "causal")
    except AttributeError:  # a configuration without the usual keys
        return None
    return per_token * config.sequence_length


def _head_input(head: nn.Module, model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the input of the output layer, which may differ from the hidden states (BERT has a layer between)."""
    head.forward = _identity
    try:
        hidden: Tensor = model(**inputs).logits
    finally:
        del head.forward  # restores the method of the class
    return hidden


def _identity(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def _has_linear_head(model: Any) -> bool:
    """Whether the logits are the unmodified output of the last linear layer: tested with two tokens."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    tokens = torch.tensor([[0, 1]])
    # Biases are initially zero, and an added bias would have no effect on the test.
    biases = [parameter for parameter in model.parameters() if parameter.shape == (head.out_features,)]
    saved = [bias.clone() for bias in biases]
    training = model.training
    model.eval()
    head.weight *= 1024  # exact and reversible: a nonlinear function of the logits has an effect on large values
    try:
        for bias in biases:
            bias.copy_(torch.linspace(-1, 1, len(bias)))
        logits = nn.functional.linear(_head_input(head, model, {"input_ids": tokens}), head.weight, head.bias)
        return torch.allclose(logits, model(input_ids=tokens).logits, rtol=1e-4, atol=1e-5)
    except RuntimeError:  # the module after the last layer accepts logits only
        return False
    finally:
        head.weight /= 1024
        for bias, value in zip(biases, saved, strict=True):
            bias.copy_(value)
        model.train(training)
