"""Rules about the software of nodes."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

import yaml

from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.settings import StackSettings
from trainyard.config.validators.rule import Rule


def venv_is_a_place(settings: StackSettings, root: Path) -> Iterator[Problem]:
    venv = settings.node.venv
    if venv is not None and not PurePosixPath(venv).is_absolute():
        yield Problem(
            key=f"{CONFIG_KEY}.node.venv",
            value=venv,
            why="not an absolute path, and nodes have no folder that it could begin at",
            fix="Write the whole path on the nodes, such as /opt/job-venv, or leave it out: the play then makes one",
        )


def package_index_is_a_place(settings: StackSettings, root: Path) -> Iterator[Problem]:
    index = settings.node.package_index
    if index is not None and not re.fullmatch(r"(https?://|file:///|/)\S+|s3://[a-z0-9][a-z0-9.-]+/(\S*/)?", index):
        yield Problem(
            key=f"{CONFIG_KEY}.node.package_index",
            value=index,
            why="neither a URL that pip takes, nor a prefix in S3, nor an absolute path on the nodes",
            fix="Write an index such as https://pypi.example.com/simple, or where wheels lie such as s3://mine/wheels/",
        )


def variables_are_the_roles(settings: StackSettings, root: Path) -> Iterator[Problem]:
    specs = (yaml.safe_load(file.read_text()) for file in root.glob("playbooks/roles/*/meta/argument_specs.yml"))
    known = {name for spec in specs for name in spec["argument_specs"]["main"]["options"]}
    for name in sorted(settings.node.variables.keys() - known):
        near = ", ".join(get_close_matches(name, known, n=3))
        yield Problem(
            key=f"{CONFIG_KEY}.node.variables",
            value=name,
            why="no role has such a variable",
            fix=f"Write {near}" if near else "Write one of playbooks/roles/*/defaults/main.yml, or remove it",
        )


RULES = (
    Rule(venv_is_a_place, ("node.venv",)),
    Rule(package_index_is_a_place, ("node.package_index",)),
    Rule(variables_are_the_roles, ("node.variables",)),
)
