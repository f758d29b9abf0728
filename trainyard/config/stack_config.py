"""Find and read the file of a stack, Pulumi.<stack>.yaml in a folder of stack files."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.errors import InputError, Problem, did_you_mean

_STACK_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # the characters that Pulumi allows
_PROVIDER_KEYS = ("region", "profile")  # the keys of Pulumi's AWS provider that Trainyard reads
_STACK_FILE = re.compile(r"(?:^|/)Pulumi\.(.+)\.ya?ml$")


def stack_names(stacks: Path) -> list[str]:
    """Return the names of the stacks with a file in the folder `stacks`."""
    return sorted(path.name[7:-5] for path in stacks.glob("Pulumi.*.yaml"))


def find_stack_file(stack: str, stacks: Path) -> Path:
    """Return the file of a stack. Raises InputError when it does not exist or `stack` is not a stack name."""
    file = stacks / f"Pulumi.{stack}.yaml"
    if "/" not in stack and file.is_file():
        return file
    check_stack_name(stack)
    names = stack_names(stacks)
    known = f"{did_you_mean(stack, names)}Use one of {', '.join(names)}"
    fix = known if names else f"Create it with trainyard init {stack}, or name the folder of the project with -C"
    raise InputError([Problem("--stack", stack, f"{stacks.name}/{file.name} does not exist", fix, "unknown_stack")])


def check_stack_name(stack: str) -> None:
    """Check that Pulumi allows the name. Raises InputError."""
    if match := _STACK_FILE.search(stack):
        reason, fix = "this is a stack file, but the option expects a stack name", f"Use -s {match[1]}"
    elif not _STACK_NAME.fullmatch(stack):
        reason = "not a valid stack name: letters, digits, dots, hyphens and underscores are allowed"
        fix = "Use a valid stack name"
    else:
        return
    raise InputError([Problem("--stack", stack, reason, fix, "unknown_stack")])


def read_config(file: Path, source: str) -> dict[str, Any]:
    """Return the `config` object of a stack file.

    Raises InputError for an unreadable or invalid file, and for keys of the project that nothing reads.
    """
    try:
        document = yaml.load(file.read_text(encoding="utf-8"), StackLoader)  # noqa: S506 (subclass of SafeLoader)
    except FileNotFoundError:
        reason, fix, code = "the file does not exist", "Name an existing file", "file_missing"
    except OSError as error:
        reason, fix, code = f"cannot read the file: {error.strerror}", "Make the file readable", "file_not_readable"
    except UnicodeDecodeError as error:
        reason, fix, code = f"not UTF-8 text: {error}", "Convert the file to UTF-8", "invalid_utf8"
    except yaml.YAMLError as error:
        reason, fix, code = f"not a Pulumi stack file: {error}", "Fix the YAML syntax", "invalid_yaml"
    else:
        code = "config_section_missing"
        config = document.get("config") if isinstance(document, dict) else document
        if document is None or (config is None and not document):
            reason, fix = "the file is empty", "Write one with trainyard init NAME"
        elif not isinstance(config, dict):
            keys = set(map(str, document)) - {"config"} if isinstance(document, dict) else ()
            misspelled = next(
                (f"Rename {key} to config, or add" for key in keys if did_you_mean(key, ["config"])), "Add"
            )
            reason = "the file has no object `config`"
            fix = f"{misspelled} config: at the top level, with {CONFIG_KEY} below it"
        else:
            _check_keys(config, source)
            return config
    raise InputError([Problem(source, None, reason, fix, code)])


def _check_keys(config: Mapping[Any, Any], source: str) -> None:
    """Check that `trainyard:cluster` is the project's only key, and the keys of Pulumi's AWS provider.

    Raises InputError. The provider ignores a misspelled key: its resources would be in the region of the environment.
    """
    namespace = CONFIG_KEY.partition(":")[0] + ":"
    fix = f"Remove it, or move it below {CONFIG_KEY}, in {source}"
    problems = [
        Problem(key, config[key], "unknown key", did_you_mean(key, [CONFIG_KEY]) + fix, "extra_forbidden")
        for key in config
        if str(key).startswith(namespace) and key != CONFIG_KEY
    ]
    for key in map(str, config):
        similar = get_close_matches(key.removeprefix("aws:"), _PROVIDER_KEYS, n=1, cutoff=0.75)
        if key.startswith("aws:") and similar and similar[0] != key.removeprefix("aws:"):
            fix = f"Did you mean aws:{similar[0]}? Change it in {source}"
            problems.append(Problem(key, config[key], "unknown key", fix, "extra_forbidden"))
    if problems:
        raise InputError(problems)


class StackLoader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys, as Pulumi does; PyYAML silently keeps the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raises ConstructorError for a duplicate key."""
        keys: set[Any] = set()
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key}", name.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)
