"""Load and validate the settings of a stack file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainyard.config import CONFIG_KEY
from trainyard.config.ca_certificate import read_ca_certificate
from trainyard.config.encrypted_settings import encrypted_settings
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import problems_from
from trainyard.config.validators import validate
from trainyard.errors import InputError, Problem


def load_settings(raw: Any, root: Path, source: str) -> StackSettings:
    """Validate the value of `trainyard:cluster`.

    `root` is the folder of Pulumi.yaml, `source` the name of the stack file. Raises InputError with every
    encrypted value; if there are none, with every problem of types and keys; if there are none, with every problem that
    the validators report.
    """
    if not isinstance(raw, Mapping):
        is_missing = raw is None
        reason = "the stack file has no such key" if is_missing else "must be a mapping"
        code = "missing" if is_missing else "mapping_type"
        fix = f"Describe the cluster under it in {source}"
        raise InputError([Problem(CONFIG_KEY, raw, reason, fix, code)])
    if problems := encrypted_settings(raw):
        raise InputError(problems)
    try:
        settings = StackSettings.model_validate(raw)
    except ValidationError as error:
        raise InputError(problems_from(error, CONFIG_KEY, source, StackSettings)) from None
    if problems := validate(settings, root):
        raise InputError(problems)
    # The manifest has the text of the certificate.
    certificate = read_ca_certificate(settings.node.ca_certificate, root)
    node = settings.node.model_copy(update={"ca_certificate": certificate})
    return settings.model_copy(update={"node": node})
