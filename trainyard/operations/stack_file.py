"""A stack's file as an operator's command writes to it: one value, everything else stays to the last comment."""

import json
from pathlib import Path
from typing import Any

import yaml

from trainyard.base import CONFIG_KEY, InputError, Problem

ROOT = Path(__file__).parents[2]
KEY = "image"
_AFTER = "instance_type"  # a stack can't be without it


def path_of(stack: str) -> Path:
    """Where Pulumi keeps it (stackConfigDir in Pulumi.yaml)."""
    return ROOT / "stacks" / f"Pulumi.{stack}.yaml"


class StackFile:
    """One stack's file. Raises InputError for one that can't be written to: before anything is paid for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with_image(path.read_text(), "ami-0")
            with path.open("a"):
                pass
        except (OSError, ValueError, yaml.YAMLError) as error:
            fix = "Name the file of the stack with --file"
            raise InputError([Problem(key="--file", value=str(path), why=str(error), fix=fix)]) from None

    @property
    def image(self) -> str | None:
        """What it names now."""
        found = _plain(self.path.read_text())["config"][CONFIG_KEY].get(KEY)
        return None if found is None else str(found)

    def write_image(self, image: str) -> bool:
        """Name this image; whether that was a change. The file is whole at every moment."""
        before = self.path.read_text()
        after = with_image(before, image)
        if after == before:
            return False
        work = self.path.with_name(f".{self.path.name}.partial")
        work.write_text(after)
        work.chmod(self.path.stat().st_mode)
        work.replace(self.path)
        return True


def with_image(text: str, image: str) -> str:
    """The text of a stack's file with another image: the value in its place, or a new line after the instance type.

    Raises ValueError where that can't be done, and yaml's own error for what is no YAML.
    """
    place = _place(text)
    value = next((value for key, value in place.value if key.value == KEY), None)
    if value is not None:
        start, end, new = value.start_mark.index, value.end_mark.index, image
    else:
        pairs = {key.value: (key, value) for key, value in place.value}
        if _AFTER not in pairs:
            raise ValueError(f"{CONFIG_KEY} has no {_AFTER} in it")
        key, last = pairs[_AFTER]
        if place.flow_style:
            start = end = key.start_mark.index
            new = f"{KEY}: {image}, "
        else:
            start = end = _end_of_line(text, last.end_mark.index)
            new = f"\n{' ' * key.start_mark.column}{KEY}: {image}"
    changed = text[:start] + new + text[end:]
    wanted = _plain(text)
    wanted["config"][CONFIG_KEY][KEY] = image
    if _plain(changed) != wanted:
        raise ValueError(f"{KEY} can't be written there without changing something else: write it by hand")
    return changed


def _end_of_line(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _place(text: str) -> yaml.MappingNode:
    """The mapping in which all settings stand."""
    found = yaml.compose(text, Loader=yaml.SafeLoader)
    for name in ("config", CONFIG_KEY):
        pairs = found.value if isinstance(found, yaml.MappingNode) else []
        found = next((value for key, value in pairs if key.value == name), None)
    mapping = found if isinstance(found, yaml.MappingNode) else None
    if mapping is None:
        raise ValueError(f"it has no mapping config.{CONFIG_KEY}")
    return mapping


def _plain(text: str) -> Any:
    """The whole document, with a mapping of its own in each place that shares one by an alias."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))
