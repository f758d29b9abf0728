"""Models of the user, `model.kind: custom`: each is a file in this folder with a class, and a line in MODELS.

The class is a torch.nn.Module. It is called with:

- `vocabulary` and `sequence_length`, and `model.settings` as further keyword arguments, to create it. It initializes
  its weights on the CPU;
- a micro-batch, to train it: `tokens` and `targets`, int64 (batch, length) each, and `cu_seqlens`, the third argument,
  if a sequence has several documents (trainer/models/documents.py). It returns the sum of the losses of all targets
  that are not IGNORED, divided by the number of all targets, as `trainer.models.loss.next_token_loss` does.

Blocks in an nn.ModuleList or nn.Sequential are the units of FSDP, compilation and activation checkpointing.
"""

import inspect
import traceback
from collections import Counter
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainer.models.model import Model, find_blocks, setting_error
from trainyard.config.training.models import CustomModelConfig
from trainyard.errors import InputError, Problem

# `model.name` -> module and class, such as "gru": "trainer.models.gru:GRU".
MODELS: dict[str, str] = {}


def build_custom_model(config: CustomModelConfig) -> Model:
    """Create a registered model. Raises InputError if there is none of this name, or if it rejects its settings."""
    model_class = _find_class(config.name)
    sizes: dict[str, Any] = {"vocabulary": config.vocabulary, "sequence_length": config.sequence_length}
    try:
        inspect.signature(model_class).bind(**sizes, **config.settings)
        module = model_class(**sizes, **config.settings)
    except (TypeError, ValueError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        # An error in the code of the class is no wrong setting. inspect reports arguments that do not fit.
        where = "" if frame.filename == inspect.__file__ else f" ({Path(frame.filename).name}:{frame.lineno})"
        reason = f"{model_class.__name__} rejects them: {_text(error)}{where}"
        raise setting_error(
            "settings", config.settings, reason, "Correct them, or the class", "model_settings_rejected"
        ) from error
    module.register_forward_hook(_require_loss)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    uses = Counter(id(parameter) for part in module.modules() for parameter in part.parameters(recurse=False))
    embeddings = (part.weight for part in module.modules() if isinstance(part, nn.Embedding))
    tables = sum(weight.numel() for weight in embeddings if uses[id(weight)] == 1)  # not that of an output layer, too
    return Model(
        module=module,
        blocks=dict(find_blocks(module)),
        initialize=None,
        vocabulary=config.vocabulary,
        parameters=parameters,
        # 6 N per token: Kaplan et al., Scaling Laws for Neural Language Models, arXiv 2001.08361, without attention.
        flops=6.0 * (parameters - tables) * config.sequence_length,
        separates_documents=lambda: list(inspect.signature(module.forward).parameters)[2:3] == ["cu_seqlens"],
    )


def _find_class(name: str) -> type[nn.Module]:
    if name not in MODELS:
        close = get_close_matches(name, MODELS, 1)
        fix = f"Write {close[0]}" if close else "Add its line to MODELS in trainer/models/registry.py"
        raise setting_error("name", name, "is no registered model", fix, "model_not_registered")
    module, _, class_name = MODELS[name].partition(":")
    try:
        model_class: type[nn.Module] = getattr(import_module(module), class_name)
    except (ImportError, AttributeError, NameError, SyntaxError) as error:
        reason = f"is {MODELS[name]!r} in trainer/models/registry.py, which cannot be imported: {_text(error)}"
        fix = "Correct it to MODULE:CLASS, or correct the module"
        raise setting_error("name", name, reason, fix, "model_not_importable") from error
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        reason, fix = f"is {MODELS[name]!r}, which is no torch.nn.Module", "Derive it from torch.nn.Module"
        raise setting_error("name", name, reason, fix, "model_is_no_module")
    return model_class


def _require_loss(module: nn.Module, _inputs: Any, output: Any) -> None:
    """Raise InputError unless the output of a forward pass is a loss."""
    if isinstance(output, Tensor) and output.dim() == 0:
        return
    returned = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    reason = (
        f"{type(module).__name__}.forward must return the loss, a tensor without dimensions, and returns {returned}"
    )
    fix = "Return that of next_token_loss (trainer/models/loss.py)"
    raise InputError([Problem("config.model", None, reason, fix, "model_returns_no_loss")])


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
