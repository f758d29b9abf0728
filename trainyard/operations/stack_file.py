"""Read a stack's file, and write one value into it without a change of anything else, including comments."""

import json
from pathlib import Path
from typing import Any

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.project import Project
from trainyard.config.settings import StackSettings
from trainyard.config.stack_config import read_config
from trainyard.errors import InputError, Problem, did_you_mean

KEY = "image"
_PREVIOUS_KEY = "instance_type"  # every stack has this key; a new image line follows it


def deploy_or_correct(stack: str, project: Project | None) -> str:
    """Return the start of a fix for a stack that is not deployed: deploy it, or correct a name similar to another's.

    A stack without a file in the project can be deployed too. `project`: None where it is not known.
    """
    names = project.stack_names if project else []
    deploy = f"the stack first (trainyard up -s {stack})"
    if stack in names:
        return f"Deploy {deploy}"
    if suggestion := did_you_mean(stack, names):
        return f"{suggestion}Correct the name"
    no_file = f" ({project.stacks.name}/ has no file of it)" if project else ""
    return f"Correct the name{no_file}, or deploy {deploy}"


def stack_region(stack: str, project: Project) -> str | None:
    """Return aws:region of a stack's file; None without the file or the key."""
    try:
        config = (yaml.safe_load(project.stack_file(stack).read_text()) or {}).get("config") or {}
    except (OSError, AttributeError, yaml.YAMLError):
        return None
    region = config.get("aws:region")
    return region if isinstance(region, str) else None


def read_stack_settings(stack: str, project: Project, file: Path | None) -> StackSettings:
    """Return the settings of a stack's file, by default that of the project. Raises InputError."""
    path = file or project.find_stack_file(stack)
    config = read_config(path, str(file) if file else project.source(stack))
    return load_settings(config.get(CONFIG_KEY), project.folder, path.name)


class StackFile:
    """The file of one stack. Raises InputError when it cannot be written, before anything is paid for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with_image(path.read_text(), "ami-0")
            with path.open("a"):
                pass
        except (OSError, ValueError, yaml.YAMLError) as error:
            fix = "Name the file of the stack with --file"
            raise InputError([Problem("--file", str(path), str(error), fix, "stack_file_not_editable")]) from None

    @property
    def image(self) -> str | None:
        """The image in the file; None when it names none."""
        image = _load_plain(self.path.read_text())["config"][CONFIG_KEY].get(KEY)
        return None if image is None else str(image)

    def write_image(self, image: str) -> bool:
        """Write the image into the file atomically; return whether the file changed."""
        before = self.path.read_text()
        after = with_image(before, image)
        if after == before:
            return False
        partial = self.path.with_name(f".{self.path.name}.partial")
        partial.write_text(after)
        partial.chmod(self.path.stat().st_mode)
        partial.replace(self.path)
        return True


def with_image(text: str, image: str) -> str:
    """Return the text of a stack file with another image: the value is replaced, or a line added after instance_type.

    Raises ValueError when this would change another setting, and YAMLError when the text is not YAML.
    """
    settings = _settings_node(text)
    value = next((value for key, value in settings.value if key.value == KEY), None)
    if value is not None:
        start, end, inserted = value.start_mark.index, value.end_mark.index, image
    else:
        pairs = {key.value: (key, value) for key, value in settings.value}
        if _PREVIOUS_KEY not in pairs:
            raise ValueError(f"{CONFIG_KEY} has no key {_PREVIOUS_KEY}")
        key, previous_value = pairs[_PREVIOUS_KEY]
        if settings.flow_style:
            start = end = key.start_mark.index
            inserted = f"{KEY}: {image}, "
        else:
            start = end = _end_of_line(text, previous_value.end_mark.index)
            inserted = f"\n{' ' * key.start_mark.column}{KEY}: {image}"
    changed = text[:start] + inserted + text[end:]
    expected = _load_plain(text)
    expected["config"][CONFIG_KEY][KEY] = image
    if _load_plain(changed) != expected:
        raise ValueError(f"{KEY} cannot be written without changing another setting: write it by hand")
    return changed


def _end_of_line(text: str, index: int) -> int:
    newline = text.find("\n", index)
    return len(text) if newline < 0 else newline


def _settings_node(text: str) -> yaml.MappingNode:
    """Return the YAML mapping that holds all settings of the cluster."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for name in ("config", CONFIG_KEY):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for key, value in pairs if key.value == name), None)
    mapping = node if isinstance(node, yaml.MappingNode) else None
    if mapping is None:
        raise ValueError(f"the file has no mapping config.{CONFIG_KEY}")
    return mapping


def _load_plain(text: str) -> Any:
    """Load the document and copy every mapping that YAML aliases share."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))
