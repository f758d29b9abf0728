"""Validate that nodes get the code of a custom model: they would fail after their start."""

import ast
from pathlib import Path

from infra.packaging.files import list_files
from trainyard.config.settings import StackSettings
from trainyard.config.training.models import CustomModelConfig
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, did_you_mean

REGISTRY = "trainer/models/registry.py"


def validate_custom_model(settings: StackSettings, root: Path) -> None:
    """Raise InputError unless the model is registered, and its file is in the bundle. `root`: of the bundle's files."""
    model = None if settings.job.train is None else settings.job.train.model
    if not isinstance(model, CustomModelConfig):
        return
    models = _registered_models((root / REGISTRY).read_text())
    if model.name not in models:
        reason = f"is no model of MODELS in {REGISTRY}"
        fix = did_you_mean(model.name, models) + f"Add its line to {REGISTRY} of a clone"
        raise InputError([invalid_setting("job.train.model.name", model.name, reason, fix, "model_not_registered")])
    file = models[model.name].partition(":")[0].replace(".", "/") + ".py"
    if file not in list_files(root, [REGISTRY.partition("/")[0]]):
        reason = f"nodes do not get its file, {file}: it does not exist, or git does not track it"
        fix = f"git add {file}" if (root / file).exists() else f"Correct {REGISTRY}"
        raise InputError([invalid_setting("job.train.model.name", model.name, reason, fix, "model_not_in_bundle")])


def _registered_models(source: str) -> dict[str, str]:
    """Return MODELS of the registry. This program does not import it: it imports torch."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MODELS" and node.value is not None:
            models: dict[str, str] = ast.literal_eval(node.value)
            return models
    return {}
