"""What a rehearsal starts from: the stack's settings, an empty folder, an account, an environment of its own."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil
import yaml

from infra.packaging.source import pack_source
from rehearsal.aws.faults import Fault
from rehearsal.aws.process import EmulatedAws
from rehearsal.display import Show
from rehearsal.faults import check_faults
from rehearsal.hypervisor.processes import MARK
from rehearsal.hypervisor.registry import sweep
from rehearsal.scaling import scale
from trainyard.base import CONFIG_KEY, InputError, Problem
from trainyard.config.loader import read_settings
from trainyard.config.settings import MOST_NODES, StackSettings
from trainyard.models.report import BackendName, EngineName, Scaled

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_REGION = "us-east-1"
BAKED = "baked.yaml"  # a copy of the stack's file, with the image that was baked
_STACK_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # Pulumi's own rule
_STACK_FILE = re.compile(r"(?:^|/)Pulumi\.(.+)\.ya?ml$")


def whole_nodes(given: str | None) -> int | None:
    """What `--nodes` asks for. Raises InputError for what is no number of nodes."""
    if given is None:
        return None
    if given.isdecimal() and 1 <= int(given) <= MOST_NODES:
        return int(given)
    why, fix = f"not a whole number from 1 to {MOST_NODES}", "Write one, or leave it out for the stack's own"
    raise InputError([Problem(key="--nodes", value=given, why=why, fix=fix)])


def bakeable(asked: bool, backend: BackendName) -> bool:
    """What `--bake` asks for. Raises InputError where a node has no disk to make an image of."""
    if asked and backend != "nspawn":
        why = "its nodes have no disk that could become an image, and --bake (BAKE) asks for one"
        fix = "Add --backend nspawn (BACKEND=nspawn)"
        raise InputError([Problem(key="--backend", value=backend, why=why, fix=fix)])
    return asked


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user asks of a rehearsal."""

    stack: str
    nodes: int | None = None
    faults: tuple[Fault, ...] = ()
    engine: EngineName = "mocks"
    backend: BackendName = "process"
    bake: bool = False
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        return self.root / "build" / "rehearsal" / self.stack


def read_stack(options: Options) -> tuple[dict[str, Any], StackSettings, list[Scaled]]:
    """The stack file's config with its settings scaled to this machine. Raises InputError before anything is made."""
    file = find_stack(options.stack, options.root / "stacks")
    source = f"stacks/{file.name}"
    config = read_config(file, source)
    check_region(str(config.get("aws:region", DEFAULT_REGION)), source)
    read_settings(config.get(CONFIG_KEY), options.root, source)
    scaled, changes = scale(config[CONFIG_KEY], options.nodes, options.backend)
    settings = read_settings(scaled, options.root, source)
    check_faults(options.faults, settings)
    if settings.job.source is not None:
        pack_source(options.root, settings.job.source)  # the program does it again: here it is refused in time
    return {**config, CONFIG_KEY: scaled}, settings, changes


def find_stack(stack: str, stacks: Path) -> Path:
    """The file of a stack. Raises InputError where there is none, or where a path is given in place of its name."""
    file = stacks / f"Pulumi.{stack}.yaml"
    if "/" not in stack and file.is_file():
        return file
    if named := _STACK_FILE.search(stack):
        why, fix = "a stack goes by its name, not by its file", f"Write --stack {named[1]}"
    elif not _STACK_NAME.fullmatch(stack):
        why, fix = "no name of a stack: letters, digits, dots, hyphens and underscores", "Write such a name"
    else:
        have = ", ".join(sorted(one.name[7:-5] for one in stacks.glob("Pulumi.*.yaml")))
        why, fix = f"no such file: stacks/{file.name}", f"Choose one of {have}"
    raise InputError([Problem(key="--stack", value=stack, why=why, fix=fix)])


def read_config(file: Path, source: str) -> dict[str, Any]:
    """What stands under `config` in a stack file. Raises InputError for what can't be read."""
    try:
        loaded = yaml.load(file.read_text(encoding="utf-8"), StackLoader)  # noqa: S506 (a safe one)
    except OSError as error:
        why, fix = f"can't be read: {error.strerror}", "Make it readable"
    except UnicodeDecodeError as error:
        why, fix = f"not text in UTF-8: {error}", "Write it anew in UTF-8"
    except yaml.YAMLError as error:
        why, fix = f"not a Pulumi stack file: {error}", "Mend its YAML"
    else:
        config = loaded.get("config") if isinstance(loaded, dict) else loaded
        if loaded is None or (config is None and not loaded):
            why, fix = "it is empty", "Begin with a copy of stacks/Pulumi.local.yaml"
        elif not isinstance(config, dict):
            why, fix = "it has no object `config`", f"Put config: at its top, and {CONFIG_KEY} below it"
        else:
            return config
    raise InputError([Problem(key=source, value="...", why=why, fix=fix)])


class StackLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, as it is for Pulumi: the first would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} stands twice", name.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def check_region(region: str, source: str, key: str = "aws:region") -> None:
    """Raises InputError for a region that AWS has not."""
    session = boto3.session.Session()
    known = {name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)}
    if region not in known:
        fix = f"Change it in {source}"
        raise InputError([Problem(key=key, value=region, why="AWS has no such region", fix=fix)])


def prepare_folder(folder: Path, show: Show, cut: str) -> None:
    """An empty folder, after an earlier rehearsal in it is swept up. `cut`: that one's process, if it was cut."""
    ended = sweep(folder)
    if cut or ended:
        who = f" (process {cut}, which was cut)" if cut else ""
        show.line("account", f"swept up: {ended} processes that an earlier rehearsal{who} left")
    empty(folder)


def empty(folder: Path) -> None:
    """Remove what a rehearsal leaves."""
    reports = ("report.json", "report.html", "logs.txt", "node-logs.txt", BAKED)
    for name in ("aws", "pulumi", "results", "reserve", *reports):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def account_folder(rehearsals: Path, holder: int) -> Path:
    """Where an account that stays keeps its journal. `holder`: the process that it stays with."""
    return rehearsals / f"aws-{holder}"


def sweep_accounts(rehearsals: Path) -> None:
    """Remove what accounts left whose holder was killed. A folder with a lock is a rehearsal's: of a stack so named."""
    for folder in rehearsals.glob("aws-*"):
        holder = folder.name.removeprefix("aws-")
        if holder.isdecimal() and not psutil.pid_exists(int(holder)) and not (folder / "lock").exists():
            shutil.rmtree(folder)


def given_account() -> EmulatedAws | None:
    """The emulated AWS that the environment names, as everything of ours finds it; None where it names none."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None:
        return None
    try:
        return EmulatedAws.attach(endpoint)
    except ValueError as error:
        problem = Problem(
            key="AWS_ENDPOINT_URL",
            value=endpoint,
            why=str(error),
            fix="Start one with `python -m rehearsal aws`, or unset it: the rehearsal then has an account of its own",
        )
        raise InputError([problem]) from None


@contextmanager
def marking(folder: Path) -> Iterator[None]:
    """What is started meanwhile bears the folder's mark: should it outlive us, the next rehearsal finds it."""
    os.environ[MARK] = str(folder)
    try:
        yield
    finally:
        del os.environ[MARK]


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """The account that everything started from here finds; nothing of the user's own AWS settings counts."""
    earlier = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(values)
    os.environ["VIRTUAL_ENV"] = sys.prefix  # what the launcher takes where the tree has no environment of its own
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(earlier)
