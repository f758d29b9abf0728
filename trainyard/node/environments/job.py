"""Makes the job's Python environment from the bundle's pinned list: `python -m trainyard.node.environments.job INDEX`.

Run by the role `pytorch`. Prints `made` when it made one, `kept` when the one there is from the same list; JOB_VENV
leads to it from the next attempt on. uv makes it:
it resolves nothing anew, takes what is wanted side by side, and compiles byte code, without which `import torch` takes
more than twice as long in every worker.
"""

import sys
from pathlib import Path

from trainyard.node.bootstrap import Fatal, switch
from trainyard.node.environments.node import BUNDLE, JOB_VENV, index_options, make, prune, run

REQUIREMENTS = BUNDLE / "trainer/requirements.txt"


def install(folder: Path, index: str | None) -> None:
    """Raises Fatal with uv's last words."""
    uv = [sys.executable, "-m", "uv", "--no-progress"]
    run([*uv, "venv", "--python", sys.executable, str(folder)])
    options = ["--link-mode", "copy", "--compile-bytecode", *index_options(index)]
    lists = ["-r", str(REQUIREMENTS), "-c", str(BUNDLE / "constraints.txt")]
    run([*uv, "pip", "install", "--python", str(folder / "bin/python"), *options, *lists])


def main() -> int:
    try:
        folder, made = make(REQUIREMENTS, lambda made: install(made, sys.argv[1] or None))
    except Fatal as error:
        print(error, file=sys.stderr)
        return 1
    switch(JOB_VENV, folder)
    prune()
    print("made" if made else "kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
