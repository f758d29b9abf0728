"""Create the job's Python environment from its lock: `python -m trainyard.node.environments.job INDEX`.

Run by the role `pytorch`. Prints `created`, or `unchanged` if an environment of the same lock exists. The link
JOB_VENV points to it from the next attempt on. uv installs it, because uv downloads in parallel and compiles byte code,
without which `import torch` takes more than twice as long in every worker.
"""

import sys
from pathlib import Path

from trainyard.node.bootstrap import BootstrapError, replace_link
from trainyard.node.environments.node import (
    BUNDLE,
    HASH_OPTIONS,
    JOB_VENV,
    create_environment,
    index_options,
    remove_unused,
    run_command,
)

LOCK = BUNDLE / "trainer/requirements.txt"


def install(folder: Path, index: str | None) -> None:
    """Create the environment in `folder` with uv. Raises BootstrapError with the last lines of uv's output."""
    uv = [sys.executable, "-m", "uv", "--no-progress", "--system-certs"]
    run_command([*uv, "venv", "--python", sys.executable, str(folder)])
    options = ["--link-mode", "copy", "--compile-bytecode", *index_options(index)]
    lock = [*HASH_OPTIONS, "-r", str(LOCK)]
    run_command([*uv, "pip", "install", "--python", str(folder / "bin/python"), *options, *lock])


def main() -> int:
    """Create the environment if needed and point JOB_VENV to it; the exit code."""
    try:
        folder, created = create_environment(LOCK, lambda folder: install(folder, sys.argv[1] or None))
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return 1
    replace_link(JOB_VENV, folder)
    remove_unused()
    print("created" if created else "unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
