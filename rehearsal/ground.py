"""What a rehearsal starts from: the stack's settings, an empty folder, an account, an environment of its own."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml

from contract.base import CONFIG_KEY, InputError, Problem
from contract.report import Scaled
from contract.settings import StackSettings, read_settings
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.process import sweep
from rehearsal.hypervisor.processes import MARK
from rehearsal.scaling import scale
from rehearsal.show import Show

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user asks of a rehearsal."""

    stack: str
    nodes: int | None = None
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        return self.root / "build" / "rehearsal" / self.stack


def read_stack(options: Options) -> tuple[dict[str, Any], StackSettings, list[Scaled]]:
    """The stack file's config with its settings scaled to this machine. Raises InputError before anything is made."""
    stacks = options.root / "stacks"
    file = stacks / f"Pulumi.{options.stack}.yaml"
    if not file.is_file():
        have = ", ".join(sorted(one.name[7:-5] for one in stacks.glob("Pulumi.*.yaml")))
        why = f"no such file: stacks/Pulumi.{options.stack}.yaml"
        raise InputError([Problem(key="--stack", value=options.stack, why=why, fix=f"Choose one of {have}")])
    try:
        config = (yaml.load(file.read_text(), StackLoader) or {}).get("config") or {}  # noqa: S506 (a safe one)
    except (yaml.YAMLError, AttributeError) as error:
        why = f"not a Pulumi stack file: {error}"
        raise InputError([Problem(key=f"stacks/{file.name}", value="...", why=why, fix="Mend its YAML")]) from None
    source = f"stacks/{file.name}"
    check_region(str(config.get("aws:region", DEFAULT_REGION)), source)
    read_settings(config.get(CONFIG_KEY), options.root, source)
    settings, changes = scale(config[CONFIG_KEY], options.nodes)
    return {**config, CONFIG_KEY: settings}, read_settings(settings, options.root, source), changes


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


def check_region(region: str, source: str) -> None:
    """Raises InputError for a region that AWS has not."""
    session = boto3.session.Session()
    known = {name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)}
    if region not in known:
        fix = f"Change it in {source}"
        raise InputError([Problem(key="aws:region", value=region, why="AWS has no such region", fix=fix)])


def prepare_folder(folder: Path, show: Show, cut: str) -> None:
    """An empty folder, after an earlier rehearsal in it is swept up. `cut`: that one's process, if it was cut."""
    ended = sweep(folder)
    if cut or ended:
        who = f" (process {cut}, which was cut)" if cut else ""
        show.line("account", f"swept up: {ended} processes that an earlier rehearsal{who} left")
    for name in ("aws", "results", "logs.txt", "node-logs.txt", "report.json", "report.html"):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


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
