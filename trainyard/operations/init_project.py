"""Write a stack file in a repository of the user, and what the Pulumi CLI needs to run Trainyard's program there."""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config import CONFIG_KEY
from trainyard.config.catalog import Gpu, catalog
from trainyard.config.field_types import is_s3_uri
from trainyard.config.loader import load_settings
from trainyard.config.project import FOLDER, NAME, PROJECT_FILE, PROJECT_ROOT, Project, find_own_project, read_project
from trainyard.config.stack_config import check_stack_name
from trainyard.errors import InputError, Problem

LAUNCHER = "launcher"  # started by the program's command, see infra/components/launch.py
PROGRAM = '''\
"""The Pulumi program of Trainyard. It deploys the stacks whose files are in this folder."""

from pathlib import Path

from infra.program import run

run(Path(__file__).parent)
'''
PROJECT = """\
# The Pulumi project of the stack files in this folder. Tags and IAM paths of AWS resources contain its name: it
# distinguishes stacks of the same name in one account. Do not change it after
# the first `up`: the retained data would not be imported.
name: {name}
description: GPU training clusters on AWS
runtime:
  name: python       # of the active Python environment, which has the package trainyard
  options:
    toolchain: pip
"""
IGNORED = "/build/\n__pycache__/\n"
_MICRO_BATCH = 4


class InitResult(StrictModel):
    """`trainyard init --json`."""

    stack: str = Field(description="Pulumi stack.")
    files: tuple[str, ...] = Field(description="Paths of the files that were written.")
    commands: tuple[str, ...] = Field(description="The next commands.")


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of a new stack file.

    `command`: script and arguments of a custom job, None for the built-in trainer. `source`: its folder. `data`: what
    it reads, a dataset of the data bucket or an S3 prefix; None: no data.
    """

    instance_type: str
    nodes: int
    region: str
    source: Path
    command: str | None = None
    data: str | None = None


def init_project(stack: str, start: Path, options: InitOptions) -> InitResult:
    """Write the file of a stack into the project of the folder `start`, which is created if there is none.

    Existing files are kept. Raises InputError when the stack has a file, and for invalid options, before it writes.
    """
    check_stack_name(stack)
    project = find_own_project(start) or read_project(start / FOLDER)
    file = project.stack_file(stack)
    if file.exists():
        fix = "Change the file, or use another name"
        raise InputError([Problem("NAME", stack, f"{project.source(stack)} exists", fix, "stack_file_exists")])
    text = stack_text(stack, project, options)
    _validate(text, project, project.source(stack))
    contents = {
        file: text,
        project.folder / PROJECT_FILE: PROJECT.format(name=_project_name(start)),
        project.folder / ".gitignore": IGNORED,
        project.program / "__main__.py": PROGRAM,
    }
    missing = [path for path in contents if not path.exists()]
    for path in missing:
        path.write_text(contents[path], encoding="utf-8")
    launcher = project.program / LAUNCHER
    if not launcher.exists():
        shutil.copyfile(PROJECT_ROOT / "infra" / LAUNCHER, launcher)
        launcher.chmod(0o755)
        missing.append(launcher)
    written = tuple(_relative(path, start) for path in missing)
    return InitResult(stack=stack, files=written, commands=_next_commands(stack, _relative(project.folder, start)))


def _project_name(folder: Path) -> str:
    """Return the name of a new Pulumi project: the folder's name, without the characters that Pulumi does not accept.

    Source: pulumi/pulumi, sdk/go/common/tokens, ValidateProjectName.
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.absolute().name).strip("-.")[:100] or NAME


def _validate(text: str, project: Project, source: str) -> None:
    """Validate the stack file in the project's folder, which must exist for that: `job.source` is relative to it."""
    is_new = not project.folder.exists()
    project.folder.mkdir(parents=True, exist_ok=True)
    try:
        load_settings(yaml.safe_load(text)["config"][CONFIG_KEY], project.folder, source)
    except InputError:
        if is_new:
            project.folder.rmdir()
        raise


def stack_text(stack: str, project: Project, options: InitOptions) -> str:
    """Return the text of the stack file."""
    entry = catalog().get(options.instance_type)
    gpu = entry.gpu if entry else None
    root_volume = [] if gpu else ["root_volume_gib: 40"]
    cluster = [
        f"instance_type: {options.instance_type}   # of the worker nodes",
        f"nodes: {options.nodes}                    # all or none",
        "head_instance_type: t3.medium",
        *root_volume,
        "guardrails:",
        "  max_cost_usd: 1000          # refuse a stack whose run may cost more",
        "  # email: team@example.com   # for alarms",
        "job:",
        "  name: train",
        "  time_limit_minutes: 60      # the workers are terminated then",
        *(f"  {line}" for line in _job(project, options, gpu)),
    ]
    lines = [
        f"# The stack {stack}. `trainyard rehearse -s {stack}` runs it offline, `trainyard up -s {stack}` on AWS.",
        "# Trainyard's docs/stack-reference.md describes every key.",
        "config:",
        f"  aws:region: {options.region}",
        f"  {CONFIG_KEY}:",
        *(f"    {line}" for line in cluster),
    ]
    return "\n".join(lines) + "\n"


def _job(project: Project, options: InitOptions, gpu: Gpu | None) -> list[str]:
    """Return the lines of the custom job or, without a command, of a small example for the built-in trainer."""
    source = Path(os.path.relpath(options.source, project.folder)).as_posix()
    own_job = [
        "# The folder of the job, relative to that of this project. Nodes get its files that git does not ignore,"
    ]
    own_job.append("# without those of its .trainyardignore, and run the script with torchrun.")
    if options.command is not None:
        argv = shlex.split(options.command)
        command = yaml.safe_dump(argv, default_flow_style=True, width=10**6, allow_unicode=True).strip()
        source = yaml.safe_dump(source, width=10**6, allow_unicode=True).splitlines()[0]
        return [*_data(options.data), *own_job, f"source: {source}", f"command: {command}"]
    batch_size = _MICRO_BATCH * options.nodes * (gpu.count if gpu else 1)
    precision = "bf16" if gpu is None or gpu.specs.bf16_tflops else "fp16"
    return [
        "dataset: python-stdlib",
        "builtin_corpus: true        # fill an empty dataset with the source code of Python's standard library",
        "train:                      # the built-in trainer, with a small example",
        "  model: {dim: 64, layers: 2, heads: 4, kv_heads: 2, intermediate_size: 192, sequence_length: 64}",
        "  steps: 30",
        f"  batch_size: {batch_size}   # a multiple of micro_batch_size x nodes x processes",
        f"  micro_batch_size: {_MICRO_BATCH}",
        f"  precision: {precision}",
        "  optimizer: {warmup_steps: 5}",
        "  checkpoint: {interval_steps: 10}",
        "  evaluation: {interval_steps: 10}",
        "# Your own script instead of `train` (and without `builtin_corpus`).",
        *own_job,
        f"# source: {source}",
        '# command: [train.py, --epochs, "3"]',
    ]


def _data(data: str | None) -> list[str]:
    """Return the lines of the data of a custom job."""
    if data is None:
        return ["# dataset: NAME             # of the data bucket: trainyard data put FOLDER NAME"]
    return [f"data: {data}"] if is_s3_uri(data) else [f"dataset: {data}"]


def _next_commands(stack: str, folder: str) -> tuple[str, ...]:
    option = "" if folder == "." else f" -C {shlex.quote(folder)}"
    return (
        f"trainyard rehearse -s {stack}",
        f"pulumi stack init {stack}{option}",
        f"trainyard up -s {stack}",
    )


def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(path, start)


def format_result(result: InitResult) -> list[str]:
    """Return the result as lines for people."""
    return [*(f"wrote {file}" for file in result.files), "next:", *(f"  {command}" for command in result.commands)]
