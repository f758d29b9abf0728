"""torchrun of this trainer, whose ranks are forked from one process that has imported torch and the trainer.

    python -m trainer.launcher OPTIONS -m trainer --config FILE
    python -m trainer.launcher --standby

The first form is torchrun itself, with its options, rendezvous, log files and report of failures; only the start of a
rank differs. With `--standby` the process imports everything and waits for a line of JSON on its stdin: the arguments
of the first form, and environment variables. So the attempt after a failure starts without imports.

A fork is safe here: the imports start no threads and do not initialize CUDA, which a forked process could not use
(https://docs.pytorch.org/docs/2.15/notes/multiprocessing.html#cuda-in-multiprocessing). The only thread at the fork is
that of the rendezvous store, whose sockets the rank closes.
"""

import gc
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.imports import import_rank_modules

STANDBY = "--standby"


class ForkedRank:
    """A rank in a forked process: replaces torch's SubprocessHandler, and the Popen in it.

    `binds_numa`: whether ranks are bound to the CPUs of their GPU's NUMA node.
    """

    binds_numa = False

    def __init__(
        self,
        *,
        entrypoint: str,
        args: tuple[Any, ...],
        env: dict[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: Any,
    ) -> None:
        del entrypoint  # the interpreter; its arguments are -u -m trainer, and those of the trainer
        self.local_rank_id, self.proc = local_rank_id, self
        arguments = [str(each) for each in args[3:]]
        self._process = multiprocessing.get_context("fork").Process(
            target=_run_rank,
            args=(arguments, env, stdout, stderr, local_rank_id, numa_options if self.binds_numa else None),
        )
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # on the thread of the store
            self._process.start()
        assert self._process.pid is not None, "it has started"
        self.pid = self._process.pid
        with suppress(OSError):  # it has ended
            os.setpgid(self.pid, self.pid)  # the rank does it too: it may be first or second

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal to the rank and its processes."""
        os.killpg(self.pid, death_sig or signal.SIGTERM)


def _run_rank(
    arguments: list[str],
    variables: dict[str, str],
    stdout: str | None,
    stderr: str | None,
    local_rank: int,
    numa_options: Any,
) -> None:
    """Run the trainer in the forked process."""
    os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _close_sockets()
    for descriptor, file in ((1, stdout), (2, stderr)):
        if file:  # without redirects the rank has the output of the launcher
            opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(opened, descriptor)
            os.close(opened)
    os.environ.update(variables)
    if numa_options is not None:
        from torch.numa.binding import _maybe_apply_numa_binding_to_current_process

        _maybe_apply_numa_binding_to_current_process(device_index=local_rank, numa_options=numa_options)
    from trainer.__main__ import main

    sys.argv = ["trainer", *arguments]
    sys.exit(main())


def _close_sockets() -> None:
    """Close the sockets of the launcher: a connection must end when the launcher does."""
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # that of the listing itself
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)


def _wait_for_arguments() -> list[str]:
    """Return the arguments that arrive on stdin, and set the environment variables that arrive with them."""
    line = sys.stdin.readline()
    if not line:  # the process that has started the standby has ended
        raise SystemExit(0)
    start = json.loads(line)
    os.environ.update(start["variables"])
    arguments: list[str] = start["arguments"]
    return arguments


def main() -> None:
    """Run torchrun. Exits at once when it has ended: the end of an interpreter with torch takes half a second."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for its ranks; libraries read it when they load
    import_rank_modules()
    gc.collect()
    gc.freeze()  # a collection would copy the pages that the ranks share with this process
    arguments = _wait_for_arguments() if sys.argv[1:] == [STANDBY] else sys.argv[1:]

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.errors import record

    options = run.parse_args(arguments)  # type: ignore[no-untyped-call]
    ForkedRank.binds_numa = options.numa_binding is not None
    # Without a value torch looks for GPUs, and then a forked process could not use them.
    options.numa_binding = options.numa_binding or "node"
    vars(api)["get_subprocess_handler"] = ForkedRank
    code = 0
    try:
        record(run.run)(options)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
