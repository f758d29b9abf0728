"""Prepares a rehearsal: options, settings of the stack, an empty folder, and the AWS environment variables."""

import copy
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import psutil
import yaml

from infra.packaging.source import pack_source
from infra.validators.source import validate_source
from rehearsal.aws.account_file import FILE_VARIABLE
from rehearsal.aws.faults import Fault
from rehearsal.aws.process import EmulatedAws
from rehearsal.display import Display
from rehearsal.faults import check_faults
from rehearsal.hypervisor.processes import REHEARSAL_VARIABLE
from rehearsal.hypervisor.registry import remove_leftovers
from rehearsal.kept.background import Keep
from rehearsal.kept.environment import PROGRAMS
from rehearsal.profiles import ProfileName
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.sources import SOURCES_STACK_FILE, Sources
from rehearsal.substitutions import substitute_settings
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.region import require_known_region
from trainyard.config import CONFIG_KEY
from trainyard.config.dotted_keys import set_value
from trainyard.config.loader import load_settings
from trainyard.config.project import Project
from trainyard.config.settings import MAX_NODES, StackSettings
from trainyard.config.stack_config import read_config
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import DESCRIPTION, ENVIRONMENT, LOG, RUN_STACK_FILE, STACK_FILE
from trainyard.models.report import BackendName, EngineName, Substitution
from trainyard.quantity import quantity

DEFAULT_REGION = "us-east-1"
# Values of --set that count also where the rehearsal trains a smaller model than the stack.
LENGTH_KEYS = ("job.train.steps", "job.train.checkpoint.", "job.train.evaluation.")
LOGS = "logs.txt"  # the output of the ranks
BAKED_STACK_FILE = "baked.yaml"  # a copy of the stack file that names the baked image


def parse_nodes(text: str | None) -> int | None:
    """Parse the value of --nodes. Raises InputError for anything else than a valid number of nodes."""
    if text is None:
        return None
    if text.isdecimal() and 1 <= int(text) <= MAX_NODES:
        return int(text)
    reason = f"not a whole number from 1 to {MAX_NODES}"
    fix = "Use such a number, or omit --nodes to use the stack's number of nodes"
    raise InputError([Problem("--nodes", text, reason, fix, "invalid_node_count")])


def check_bake(bake: bool, backend: BackendName) -> bool:
    """Check and return the value of --bake. Raises InputError for a backend whose nodes have no disk."""
    if bake and backend != "nspawn":
        reason = "its nodes have no disk, so --bake (BAKE) cannot create an image of one"
        fix = "Add --backend nspawn (BACKEND=nspawn)"
        raise InputError([Problem("--backend", backend, reason, fix, "backend_without_disk")])
    return bake


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `python -m rehearsal run`.

    `faults`: those of the account. `run_faults`: those that are injected while the job runs. `changes`: settings that
    replace those of the stack file, each a dotted key and its value. `preview_only`: create no resource of the stack.
    `keep`: keep account and nodes up after the results. `keep_nodes_minutes`: that of the job if the stack file has
    none. `sources`: folders of data and model.
    """

    project: Project
    stack: str
    nodes: int | None = None
    faults: tuple[Fault, ...] = ()
    run_faults: tuple[ScheduledFault, ...] = ()
    engine: EngineName = "mocks"
    backend: BackendName = "process"
    bake: bool = False
    profile: ProfileName = "realistic"
    changes: tuple[tuple[str, Any], ...] = ()
    preview_only: bool = False
    keep: Keep | None = None
    keep_nodes_minutes: float | None = None
    sources: Sources = field(default_factory=Sources)

    @property
    def stack_tag(self) -> str:
        """The value of the tag that all resources of the stack have."""
        return tags.stack_tag(self.project.name, self.stack)

    @property
    def folder(self) -> Path:
        """The folder that the rehearsal writes to."""
        return self.project.rehearsal(self.stack)


def read_stack(options: Options) -> tuple[dict[str, Any], StackSettings, list[Substitution]]:
    """Read the stack file and scale its settings to this machine.

    Returns the stack config with the substituted settings, the validated settings, and the list of changes. Raises
    InputError for an invalid stack file, before any resource is created.
    """
    project = options.project
    file, source = project.find_stack_file(options.stack), project.source(options.stack)
    config = read_config(file, source)
    require_known_region(str(config.get("aws:region", DEFAULT_REGION)), "aws:region", source)
    raw = change_settings(config.get(CONFIG_KEY), options.changes)
    load_changed_settings(raw, options, source)
    substituted, changes = substitute_settings(raw, options.nodes, options.backend, options.sources)
    kept = [(key, value) for key, value in options.changes if key.startswith(LENGTH_KEYS)]
    substituted = change_settings(substituted, kept)
    changes += [
        Substitution(original=f"{key} of the stack file", replacement=f"{key}={value}", reason="set with --set")
        for key, value in options.changes
    ]
    if "aws:region" not in config:
        reason = "the stack file has none: pulumi up uses that of the environment or the AWS profile"
        changes.append(Substitution(original="aws:region", replacement=DEFAULT_REGION, reason=reason))
    if options.keep_nodes_minutes and "keep_nodes_minutes" not in substituted["job"]:
        substituted["job"]["keep_nodes_minutes"] = options.keep_nodes_minutes
        replacement = "until the end of the kept rehearsal"
        original = "nodes that are terminated at the end of a run"
        changes.append(Substitution(original=original, replacement=replacement, reason="set with --keep"))
    settings = load_settings(substituted, project.folder, source)
    region = str(config.get("aws:region", DEFAULT_REGION))
    check_faults((*options.faults, *options.run_faults), settings, region, options.backend)
    if settings.job.source is not None:
        # The Pulumi program does this again; this finds errors earlier.
        validate_source(settings, pack_source(project.folder, settings.job.source, settings.job.script))
    return {**config, CONFIG_KEY: substituted}, settings, changes


def load_changed_settings(raw: Any, options: Options, source: str) -> StackSettings:
    """Validate settings that --set may have changed. Raises InputError, which names --set for a key that it changed."""
    keys = [f"{CONFIG_KEY}.{key}" for key, _ in options.changes]
    try:
        return load_settings(raw, options.project.folder, source)
    except InputError as error:
        problems = [
            replace(problem, fix=problem.fix.replace(f"in {source}", "in --set"))
            if any(f"{problem.key}.".startswith(f"{key}.") or f"{key}.".startswith(f"{problem.key}.") for key in keys)
            else problem
            for problem in error.problems
        ]
        raise InputError(problems) from None


def parse_changes(specs: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Parse the values of --set, such as `capacity.reserve=false`. Raises InputError."""
    changes = []
    for spec in specs:
        key, equals, text = spec.removeprefix(f"{CONFIG_KEY}.").partition("=")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals or not all(key.split(".")):
            fix = "Use a key of the stack file and a YAML value, such as capacity.reserve=false"
            raise InputError([Problem("--set", spec, "not KEY=VALUE", fix, "invalid_change")])
        if part := _without_space(value):
            fix = "Write a space after the colon, or a dotted key for each value, such as capacity.reserve=false"
            raise InputError([Problem("--set", spec, f"{part!r} is a key without a value", fix, "invalid_change")])
        changes.append((key, value))
    return tuple(changes)


def _without_space(value: Any) -> str:
    """Return a key such as `a:b`, which YAML reads where the space after the colon is missing; "" without one."""
    if isinstance(value, dict):
        keys = (str(key) for key, item in value.items() if item is None and ":" in str(key))
        return next(keys, "") or next(filter(None, map(_without_space, value.values())), "")
    return next(filter(None, map(_without_space, value)), "") if isinstance(value, list) else ""


def change_settings(raw: Any, changes: Iterable[tuple[str, Any]]) -> Any:
    """Return settings with changed values. Sections that do not exist are created. Raises InputError."""
    changed = copy.deepcopy(raw)
    for key, value in changes:
        if not set_value(changed, key, value):
            reason, fix = "a part of the key is no section", "Use a key of docs/stack-reference.md"
            raise InputError([Problem("--set", f"{key}={value}", reason, fix, "invalid_change")])
    return changed


def prepare_folder(folder: Path, display: Display, killed_process: str) -> None:
    """Kill the processes of an earlier rehearsal in this folder and remove its files.

    `killed_process`: id of the process of that rehearsal if it was killed, else an empty string.
    """
    count = remove_leftovers(folder)
    if killed_process or count:
        earlier = (
            f"an earlier rehearsal (process {killed_process}, killed)" if killed_process else "an earlier rehearsal"
        )
        display.print_line("account", f"removed {quantity(count, 'process')} of {earlier}")
    clear_folder(folder)


def clear_folder(folder: Path) -> None:
    """Remove the files of a rehearsal, except the lock."""
    reports = ("report.json", "report.html", LOGS, "node-logs.txt", BAKED_STACK_FILE, SOURCES_STACK_FILE)
    kept = (DESCRIPTION, ENVIRONMENT, LOG, PROGRAMS, STACK_FILE, RUN_STACK_FILE)
    for name in ("aws", "pulumi", "results", "reserve", "model", *reports, *kept):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def account_folder(rehearsals: Path, process: int) -> Path:
    """Return the folder for the journal of an account started by `python -m rehearsal aws`; `process` is its id."""
    return rehearsals / f"aws-{process}"


def remove_stale_accounts(rehearsals: Path) -> None:
    """Remove the folders of accounts whose process was killed. A folder with a lock belongs to a stack named aws-..."""
    for folder in rehearsals.glob("aws-*"):
        process = folder.name.removeprefix("aws-")
        if process.isdecimal() and not psutil.pid_exists(int(process)) and not (folder / "lock").exists():
            shutil.rmtree(folder)


def attached_account() -> EmulatedAws | None:
    """Return the emulated AWS at AWS_ENDPOINT_URL; None when the variable is not set.

    REHEARSAL_ACCOUNT names its file. Raises InputError when no emulated AWS responds there.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None:
        return None
    try:
        file = os.environ.get(FILE_VARIABLE)
        if file is None:
            raise ValueError(f"{FILE_VARIABLE}, which names the account's file, is not set")
        account = EmulatedAws.attach(Path(file))
        if account.endpoint != endpoint:
            raise ValueError(f"the account of {FILE_VARIABLE} is at {account.endpoint}")
        return account
    except ValueError as error:
        problem = Problem(
            "AWS_ENDPOINT_URL",
            endpoint,
            str(error),
            "Set all variables that `python -m rehearsal aws` prints, or unset AWS_ENDPOINT_URL to use a new account",
            "invalid_endpoint",
        )
        raise InputError([problem]) from None


@contextmanager
def mark_child_processes(folder: Path) -> Iterator[None]:
    """Set the environment variable by which `find_processes` finds all processes of the rehearsal in `folder`."""
    os.environ[REHEARSAL_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[REHEARSAL_VARIABLE]


@contextmanager
def aws_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace all AWS_ environment variables of the user with `variables`, for this process and its children.

    Clients and the default session are created again, because each has the endpoint or the keys of its creation: a
    chaos run has two accounts in turn.
    """
    original = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(variables)
    os.environ["VIRTUAL_ENV"] = sys.prefix  # infra/launcher uses it
    _forget_clients()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(original)
        _forget_clients()


def _forget_clients() -> None:
    boto3.setup_default_session()
    client.cache_clear()
