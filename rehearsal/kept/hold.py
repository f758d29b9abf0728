"""Keeps account and nodes of a rehearsal up until the user ends it, or its time is over."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rehearsal.context import Context
from rehearsal.engine.base import Engine
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.kept.background import Keep
from rehearsal.kept.environment import remove_files, write_environment, write_programs
from rehearsal.teardown import Teardown
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import DESCRIPTION, ENVIRONMENT, LOG, KeptRehearsal, find_kept_rehearsal

DEFAULT_HOURS = 12.0
MAX_HOURS = 168.0
_POLL_SECONDS = 0.5


def parse_hours(text: str | None) -> float:
    """Parse the value of --keep-hours; None: DEFAULT_HOURS. Raises InputError."""
    if text is None:
        return DEFAULT_HOURS
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= MAX_HOURS:
        reason, fix = f"not a number of hours above 0 and up to {MAX_HOURS:g}", "Use such a number, or omit the option"
        raise InputError([Problem("--keep-hours", text, reason, fix, "invalid_keep_hours")])
    return hours


def check_can_keep(folder: Path, stack: str, preview: bool) -> None:
    """Raise InputError when a rehearsal of the stack is kept, or the next cannot be kept."""
    problem = None
    if find_kept_rehearsal(folder) is not None:
        reason = f"a rehearsal of this stack is kept in {folder}"
        environment = shlex.quote(str(folder / ENVIRONMENT))
        fix = f"Use it (source {environment}), or end it with trainyard rehearse --down -s {stack}"
        problem = Problem("--keep", stack, reason, fix, "already_kept")
    elif preview:
        reason, fix = "a preview creates nothing that could be kept", "Omit --preview or --keep"
        problem = Problem("--keep", None, reason, fix, "nothing_to_keep")
    elif endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        reason = "a kept rehearsal starts its own account, and this shell uses another emulated AWS"
        fix = "Unset AWS_ENDPOINT_URL, or use another shell"
        problem = Problem("AWS_ENDPOINT_URL", endpoint, reason, fix, "account_not_own")
    if problem:
        raise InputError([problem])


class Hold:
    """The time in which the rehearsal is kept."""

    def __init__(self, context: Context, engine: Engine, hypervisor: Hypervisor) -> None:
        assert context.options.keep is not None
        self._context, self._engine, self._hypervisor = context, engine, hypervisor
        self._keep: Keep = context.options.keep
        self._folder = context.options.folder

    def run(self, teardown: Teardown) -> None:
        """Keep the rehearsal until it is ended, its time is over, or the account or the nodes fail."""
        context = self._context
        assert context.deployment is not None
        context.clock.start("kept")
        teardown.record(context.deployment)  # a destroy by the user deletes what it reads
        kept = self._describe()
        try:
            with context.interrupts.catching_signals() as has_signal:
                context.display.stop_status()
                (self._folder / DESCRIPTION).write_text(kept.model_dump_json())
                self._keep.background.announce(kept, self._folder / LOG)
                context.display.print_line("kept", f"process {kept.process}, for {self._keep.hours:g} h at most")
                reason = self._wait(has_signal, time.monotonic() + self._keep.hours * 3600)
        except BrokenPipeError:
            reason = "the process that started the rehearsal was killed"
        finally:
            remove_files(self._folder)
        context.display.print_line("kept", reason)
        if not context.aws.exit_reason():
            self._engine.read_changes(context.deployment)
            teardown.count_created_resources(context.deployment)

    def _describe(self) -> KeptRehearsal:
        options, pulumi = self._context.options, self._engine.cli_environment()
        variables = {**self._context.aws.environment(), **pulumi}
        write_programs(self._folder)
        return KeptRehearsal(
            stack=options.stack,
            process=os.getpid(),
            endpoint=self._context.aws.endpoint,
            engine=options.engine,
            backend=options.backend,
            environment=str(write_environment(self._folder, options.stack, variables)),
            ends_at=time.time() + self._keep.hours * 3600,
            errors=tuple(self._context.result.errors),
            arguments=self._keep.arguments,
            pulumi_folder=str(self._folder / "pulumi") if pulumi else None,
            # infra/launcher uses VIRTUAL_ENV when the repository has no .venv.
            pulumi_environment={**pulumi, "VIRTUAL_ENV": sys.prefix} if pulumi else {},
        )

    def _wait(self, has_signal: Callable[[], bool], deadline: float) -> str:
        """Wait for the end, and return its reason."""
        while not has_signal():
            failure = self._context.aws.exit_reason() or self._hypervisor.failure
            if failure:
                self._context.add_error(failure)
                return "account or nodes failed"
            if time.monotonic() > deadline:
                return f"{self._keep.hours:g} hours are over (--keep-hours)"
            time.sleep(_POLL_SECONDS)
        return "ending, because trainyard rehearse --down or a signal requested it"
