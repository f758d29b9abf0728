"""A rehearsal from a repository of the user with the installed package, in a path with spaces and umlauts."""

import json
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.rehearsal.conftest import RUN_TIMEOUT_SECONDS, clean_environment
from tests.wheel import ROOT, build_wheel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own") / "Eigene Ablage \u00fc"


@pytest.fixture(scope="module")
def trainyard(folder: Path) -> Path:
    """The command of an environment with the wheel, which sees all other packages of this environment."""
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    wheel = build_wheel(folder)
    install = ["pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(environment / "bin/python")]
    subprocess.run([sys.executable, "-m", "uv", *install, str(wheel)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    existing = Path(sys.prefix) / packages.relative_to(environment)
    (packages / "existing.pth").write_text(f"{existing}\n")  # does not process the .pth file of this repository there
    for program in (Path(sys.prefix) / "bin").iterdir():
        if not (environment / "bin" / program.name).exists():
            (environment / "bin" / program.name).symlink_to(program)
    return environment / "bin/trainyard"


def test_rehearsal_of_an_own_repository_succeeds(folder: Path, trainyard: Path) -> None:
    repository = folder / "mein Projekt"
    repository.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=repository, check=True)
    (repository / "train.py").write_text((ROOT / "examples/custom-job/train.py").read_text())
    (repository / ".gitignore").write_text(".env\n")
    (repository / ".env").write_text("TOKEN=1\n")

    def run(*arguments: str, cwd: Path = repository) -> str:
        return execute(str(trainyard), *arguments, cwd=cwd)

    def execute(*command: str, cwd: Path) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(run("init", "dev", "--command", "train.py --epochs 3", "--json"))["stack"] == "dev"
    kept = json.loads(run("rehearse", "-s", "dev", "--profile", "instant", "--keep", "--json"))
    try:
        change = f'. {shlex.quote(kept["environment"])}; trainyard -C "$0" run -s dev --no-wait -- --epochs 1'
        execute("sh", "-c", change, str(repository), cwd=folder)
    finally:
        report = json.loads(run("-C", str(repository), "rehearse", "-s", "dev", "--down", "--json", cwd=folder))
    assert (report["errors"], report["nodes"]) == ([], 2)
    assert (repository / "trainyard/build/rehearsal/dev/report.json").is_file()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True)
    assert status.stdout.splitlines() == ["?? .gitignore", "?? train.py", "?? trainyard/"]
    run("-C", str(repository), "rehearse", "-s", "dev", "--preview")
