"""Builds the wheel of the project from the files that git tracks, without network."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Build the wheel in `folder` and return its path. The repository gets no files."""
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    build = ["build", "--wheel", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([sys.executable, "-m", "uv", *build, "--out-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
