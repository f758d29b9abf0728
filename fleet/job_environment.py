"""Makes the job's Python environment from the bundle's pinned list: `python -m fleet.job_environment FOLDER INDEX`.

Run by the role `pytorch`. Prints `made` when it made one, `kept` when the one there is from the same list. Byte code is
compiled once here: without it `import torch` takes more than twice as long in every worker.
"""

import compileall
import sys
from pathlib import Path

from fleet.environment import BUNDLE, made_from, make


def main() -> int:
    folder, index = Path(sys.argv[1]), sys.argv[2]
    requirements = BUNDLE / "trainer/requirements.txt"
    if made_from(folder, requirements):
        print("kept")
        return 0
    make(folder, requirements, index or None)
    for packages in folder.glob("lib/python3.*/site-packages"):
        compileall.compile_dir(packages, quiet=2, workers=0)
    print("made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
