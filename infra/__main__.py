"""The Pulumi program of the stacks in this repository. `trainyard init` writes that of another repository."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the engine adds infra/ only

from infra.program import run  # noqa: E402

run(ROOT)
