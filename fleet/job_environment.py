"""Makes the job's Python environment from the bundle's pinned list: `python -m fleet.job_environment FOLDER INDEX`.

Run by the role `pytorch`. Prints `made` when it made one, `kept` when the one there is from the same list. uv makes it:
it resolves nothing anew, takes what is wanted side by side, and compiles byte code, without which `import torch` takes
more than twice as long in every worker.
"""

import shutil
import sys
from pathlib import Path

from fleet.bootstrap import Fatal
from fleet.environment import BUNDLE, MARK, identity, index_options, made_from, run

REQUIREMENTS = BUNDLE / "trainer/requirements.txt"


def build(folder: Path, index: str | None, python: str = sys.executable, requirements: Path = REQUIREMENTS) -> bool:
    """Make `folder` unless it is there and whole; whether it was made. Raises Fatal with uv's last words."""
    if made_from(folder, requirements):
        return False
    if folder.exists():
        shutil.rmtree(folder)
    uv = [sys.executable, "-m", "uv", "--no-progress"]
    run([*uv, "venv", "--python", python, str(folder)])
    options = ["--link-mode", "copy", "--compile-bytecode", *index_options(index)]
    lists = ["-r", str(requirements), "-c", str(BUNDLE / "constraints.txt")]
    run([*uv, "pip", "install", "--python", str(folder / "bin/python"), *options, *lists])
    (folder / MARK).write_text(identity(requirements))
    return True


def main() -> int:
    folder, index = Path(sys.argv[1]), sys.argv[2]
    try:
        made = build(folder, index or None)
    except Fatal as error:
        print(error, file=sys.stderr)
        return 1
    print("made" if made else "kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
