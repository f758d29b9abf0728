"""Validators of the node settings."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

import yaml

from trainyard.config.ca_certificate import read_ca_certificate
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem

_PACKAGE_INDEX = r"(https?://|file:///|/)\S+|s3://[a-z0-9][a-z0-9.-]+/(\S*/)?"


def venv_is_absolute(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`node.venv` is an absolute path."""
    venv = settings.node.venv
    if venv is not None and not PurePosixPath(venv).is_absolute():
        fix = "Write the absolute path on the nodes, such as /opt/job-venv, or remove it: nodes then create one"
        yield invalid_setting("node.venv", venv, "not an absolute path", fix)


def package_index_is_valid(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`node.package_index` is a URL, an S3 prefix or an absolute path."""
    index = settings.node.package_index
    if index is not None and not re.fullmatch(_PACKAGE_INDEX, index):
        reason = "neither a URL that pip accepts, nor an S3 prefix, nor an absolute path on the nodes"
        fix = "Write an index such as https://pypi.example.com/simple, or a folder of wheels such as s3://mine/wheels/"
        yield invalid_setting("node.package_index", index, reason, fix)


def ca_certificate_is_valid(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`node.ca_certificate` is a PEM file or its text."""
    try:
        read_ca_certificate(settings.node.ca_certificate, root)
    except ValueError as error:
        fix = "Write the path of a PEM file, relative to Pulumi.yaml, or remove it"
        yield invalid_setting("node.ca_certificate", settings.node.ca_certificate, str(error), fix)


def role_variables_exist(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Each of `node.variables` is a variable of a role."""
    if not settings.node.variables:
        return
    specs = (yaml.safe_load(file.read_text()) for file in root.glob("playbooks/roles/*/meta/argument_specs.yml"))
    known = {name for spec in specs for name in spec["argument_specs"]["main"]["options"]}
    for name in sorted(settings.node.variables.keys() - known):
        similar = ", ".join(get_close_matches(name, known, n=3))
        fix = f"Write {similar}" if similar else "Use a variable of playbooks/roles/*/defaults/main.yml, or remove it"
        yield invalid_setting("node.variables", name, "no role has this variable", fix)


VALIDATORS = (venv_is_absolute, package_index_is_valid, ca_certificate_is_valid, role_variables_exist)
