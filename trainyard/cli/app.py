"""The `trainyard` command. Exit status: 0 success, 1 failure, 2 user error, 130 interrupted."""

import contextlib
import shlex
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from botocore.exceptions import BotoCoreError, ClientError
from typer.core import TyperGroup

from trainyard.aws.credentials import access_problem
from trainyard.cli.bake import bake
from trainyard.cli.blocks import blocks
from trainyard.cli.data import data
from trainyard.cli.destroy import destroy
from trainyard.cli.init import init
from trainyard.cli.launch import launch
from trainyard.cli.logs import logs
from trainyard.cli.rehearse import rehearse
from trainyard.cli.reserve import reserve
from trainyard.cli.results import results
from trainyard.cli.run import run
from trainyard.cli.selftest import selftest
from trainyard.cli.shell import shell
from trainyard.cli.status import status
from trainyard.cli.stop import stop
from trainyard.cli.up import up
from trainyard.cli.why import why
from trainyard.config.project import PROJECT_ROOT, Project, find_project
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import find_kept_rehearsal
from trainyard.operations.signals import separate_from_launcher
from trainyard.terminal import escape_control_characters


class _Commands(TyperGroup):
    """Prints each expected error as one message on stderr and sets its exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):  # subclasses of RuntimeError
            raise
        except InputError as error:
            _fail(str(error), 2)
        except (RuntimeError, TimeoutError, BotoCoreError, ClientError) as error:
            if problem := access_problem(error):
                _fail(f"{problem}{_describe_kept_rehearsals(ctx)}", 2)
            _fail(str(error), 1)
        except KeyboardInterrupt:
            _fail("interrupted", 130)


def _describe_kept_rehearsals(context: Any) -> str:
    """Return how to use the kept rehearsals of the project instead of AWS; empty without any."""
    if not isinstance(context.obj, Project):
        return ""
    kept = filter(None, map(find_kept_rehearsal, context.obj.rehearsals.glob("*/")))
    return "".join(
        f" To use the kept rehearsal of {each.stack}: source {shlex.quote(each.environment)}." for each in kept
    )


def _fail(message: str, exit_status: int) -> NoReturn:
    print(f"trainyard: {escape_control_characters(message)}", file=sys.stderr)
    raise typer.Exit(exit_status)


# Without rich_markup_mode, wrong options are reported in a box that breaks lines.
app = typer.Typer(
    cls=_Commands, add_completion=True, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"trainyard {_version()}")
        raise typer.Exit


def _version() -> str:
    """Return the version of the installed package, or of the project when it runs without installation."""
    try:
        return installed_version("trainyard")
    except PackageNotFoundError:
        project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())
        return str(project["project"]["version"])


@app.callback()
def root(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option("-C", metavar="DIR", help="Run as if started in this folder, and use the stack files there."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Launch and operate GPU training clusters on AWS.

    Exit status: 0 success, 1 failure, 2 user error, 130 interrupted; `shell` returns that of its command.

    Stack files are those of the working directory, or of the nearest folder above it with Trainyard's Pulumi.yaml or a
    folder `trainyard`.
    """
    if folder is not None:
        if not folder.is_dir():
            raise InputError(
                [Problem("-C", str(folder), "no such folder", "Name an existing folder", "folder_missing")]
            )
        context.with_resource(contextlib.chdir(folder))
    context.obj = find_project(Path.cwd())


app.command()(init)
app.command()(reserve)
app.command()(blocks)
app.command()(up)
app.command()(launch)
app.command()(run)
app.command()(status)
app.command()(why)
app.command()(logs)
app.command()(results)
app.command()(shell)
app.command()(stop)
app.command()(destroy)
app.command()(bake)
app.command()(selftest)
app.add_typer(data, name="data")
# All options of `rehearse` are those of the rehearsal itself, including --help.
_PASS_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(add_help_option=False, context_settings=_PASS_OPTIONS)(rehearse)


def main() -> None:
    """Run the command line: the console script `trainyard`."""
    separate_from_launcher()
    app(prog_name="trainyard")
