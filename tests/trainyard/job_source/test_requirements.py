"""Resolution of requirements and their wheels: uv, pip and the packages are real, the index is a folder."""

import base64
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.wheels import Wheel
from trainyard.errors import InputError
from trainyard.job_source.environment import NodeEnvironment, find_environment, image_python, tool_environment
from trainyard.job_source.node_packages import node_packages
from trainyard.job_source.resolution import (
    ToolError,
    describe_failure,
    hide_credentials,
    reads_other_files,
    resolve,
    restore_credentials,
)
from trainyard.job_source.wheels import lock_wheels, top_level_modules
from trainyard.models.requirements import RequirementsLock

Requirements = Callable[[str], Path]


@pytest.fixture
def environment() -> NodeEnvironment:
    environment = find_environment(None, "3.12")
    assert environment is not None
    return environment


@pytest.fixture
def index(tmp_path: Path) -> list[str]:
    folder = tmp_path / "index"
    folder.mkdir()
    for wheel in (Wheel(name="required"), Wheel(name="numpy", version="1.26.4")):
        wheel.build(tmp_path).rename(folder / f"{wheel.name}-{wheel.version}-py3-none-any.whl")
    return ["--no-index", "--find-links", str(folder)]


@pytest.fixture
def source(tmp_path: Path) -> Requirements:
    def write(text: str) -> Path:
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        (folder / "requirements.txt").write_text(text)
        return folder

    return write


def lock(source: Path, environment: NodeEnvironment, index: list[str], work: Path) -> RequirementsLock:
    work.mkdir()
    pins = resolve(source, environment, index)
    assert pins
    return lock_wheels(pins, environment, index, source, work, lambda text: None)


@contextmanager
def serving(folder: Path, credentials: str | None = None) -> Iterator[str]:
    """Serve a folder by HTTP, to clients with these credentials (user:password) only; yield the server's address."""
    expected = credentials and f"Basic {base64.b64encode(credentials.encode()).decode()}"

    class Handler(SimpleHTTPRequestHandler):
        def send_head(self) -> Any:
            if expected and self.headers.get("Authorization") != expected:
                self.send_error(401)
                return None
            return super().send_head()

        def log_message(self, *_: object) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Handler(*a, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_requirements_of_the_node_packages_need_no_index(source: Requirements, environment: NodeEnvironment) -> None:
    folder = source("torch\ntransformers>=5  # comment\nPyYAML\n")
    assert resolve(folder, environment, ["--index-url", "http://127.0.0.1:9/simple"]) == []


def test_only_missing_or_different_packages_are_added(
    source: Requirements, environment: NodeEnvironment, index: list[str]
) -> None:
    assert resolve(source("required\ntorch\nnumpy<2\n"), environment, index) == ["numpy==1.26.4", "required==1.0"]


def test_lock_has_the_hashes_and_modules_of_the_wheels(
    source: Requirements, environment: NodeEnvironment, index: list[str], tmp_path: Path
) -> None:
    result = lock(source("required\n"), environment, index, tmp_path / "work")
    (wheel,) = result.wheels
    assert (wheel.name, wheel.version, wheel.modules, result.python) == ("required", "1.0", ("required",), "3.12")
    assert f"required==1.0 --hash=sha256:{wheel.sha256}\n" in result.render()
    assert (tmp_path / "work/wheels" / wheel.file).stat().st_size == wheel.size


def test_wheels_are_downloaded_from_an_index(
    source: Requirements, environment: NodeEnvironment, tmp_path: Path
) -> None:
    platform_wheel = "required-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    served = tmp_path / "served"
    Wheel(name="required").build(served).rename(served / "simple/required" / platform_wheel)

    with serving(served) as address:
        options = ["--index-url", f"http://{address}/simple"]
        result = lock(source("required\n"), environment, options, tmp_path / "work")
    assert [wheel.file for wheel in result.wheels] == [platform_wheel]


def test_local_package_of_the_source_is_built(
    source: Requirements, environment: NodeEnvironment, index: list[str], tmp_path: Path
) -> None:
    folder = source("./mine\n")
    build_backend(folder / "mine", "py3-none-any")
    (wheel,) = lock(folder, environment, index, tmp_path / "work").wheels
    assert (wheel.name, wheel.modules) == ("mine", ("mine",))


def test_package_that_is_built_for_this_machine_only_is_refused(
    source: Requirements, environment: NodeEnvironment, index: list[str], tmp_path: Path
) -> None:
    folder = source("./mine\n")
    build_backend(folder / "mine", f"cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-linux_x86_64")
    with pytest.raises(InputError) as refused:
        lock(folder, environment, index, tmp_path / "work")
    (problem,) = refused.value.problems
    assert problem.code == "package_has_no_wheel"
    assert "mine" in str(problem.value)
    assert "job.container" in problem.fix


def build_backend(folder: Path, tag: str) -> None:
    """Write a package with its own build backend, which needs no other package."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "mine"\nversion = "1.0"\n'
    )
    (folder / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, config=None, metadata=None):\n"
        f"    name = 'mine-1.0-{tag}.whl'\n"
        "    with zipfile.ZipFile(f'{folder}/{name}', 'w') as archive:\n"
        "        archive.writestr('mine/__init__.py', '')\n"
        "        metadata = 'Metadata-Version: 2.1\\nName: mine\\nVersion: 1.0\\n'\n"
        "        archive.writestr('mine-1.0.dist-info/METADATA', metadata)\n"
        f"        archive.writestr('mine-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nTag: {tag}\\n')\n"
        "        archive.writestr('mine-1.0.dist-info/RECORD', '')\n"
        "    return name\n"
    )


def test_missing_package_is_reported_with_its_line(
    source: Requirements, environment: NodeEnvironment, index: list[str]
) -> None:
    folder = source("required\n\nMissing_Package>=2  # typo\n")
    with pytest.raises(ToolError) as failed:
        resolve(folder, environment, index)
    problem = describe_failure(folder, failed.value, None)
    assert (problem.code, problem.key) == ("requirements_not_resolvable", "requirements.txt:3")
    assert problem.value == "Missing_Package>=2"
    assert "missing-package" in problem.reason


def test_invalid_line_is_reported(source: Requirements, environment: NodeEnvironment, index: list[str]) -> None:
    folder = source("required\nnot a requirement\n")
    with pytest.raises(ToolError) as failed:
        resolve(folder, environment, index)
    assert describe_failure(folder, failed.value, None).key == "requirements.txt:2"


def test_unreachable_index_is_reported_without_its_credentials(
    source: Requirements, environment: NodeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    url = "http://user:secret@127.0.0.1:9/simple"
    folder = source(f"--extra-index-url {url}\nrequired\n")
    with pytest.raises(ToolError) as failed:
        resolve(folder, environment, ["--index-url", url])
    problem = describe_failure(folder, failed.value, url)
    assert problem.code == "package_index_unreachable"
    assert "secret" not in str(problem)


def test_credentials_are_hidden() -> None:
    assert hide_credentials("at https://user:p%40ss@host/simple") == "at https://****@host/simple"


def test_environment_of_an_existing_interpreter_is_its_own(
    source: Requirements, index: list[str], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    environment = find_environment(str(tmp_path / "venv"), None)
    assert environment is not None
    assert environment.python == "{}.{}".format(*sys.version_info[:2])
    assert "torch" not in environment.modules
    assert resolve(source("required\n"), environment, index) == ["required==1.0"]


def test_environment_that_only_nodes_have_is_not_known(tmp_path: Path) -> None:
    assert find_environment("/nonexistent/venv", "3.12") is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("of another system")
    assert find_environment(str(tmp_path), "3.12") is None


@pytest.mark.parametrize(
    ("image", "python"),
    [
        ("deep-learning", "3.12"),
        ("ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260714", "3.12"),
        ("debian-12-amd64-20260923-2610", "3.11"),
        ("ami-0123456789abcdef0", None),
    ],
)
def test_python_of_an_image(image: str, python: str | None) -> None:
    assert image_python(image) == python


def test_uv_and_pip_use_the_index_that_is_configured_for_one_of_them() -> None:
    assert tool_environment({"PIP_INDEX_URL": "https://a"})["UV_DEFAULT_INDEX"] == "https://a"
    assert tool_environment({"UV_DEFAULT_INDEX": "https://b"})["PIP_INDEX_URL"] == "https://b"


def test_modules_of_a_wheel() -> None:
    names = ["a/__init__.py", "b.py", "_c.cpython-312-x86_64-linux-gnu.so", "a-1.dist-info/METADATA"]
    names += ["a-1.data/purelib/d/e.py", "a-1.data/scripts/run"]
    assert top_level_modules(names) == ["_c", "a", "b", "d"]


def test_node_packages_have_the_modules_of_torch() -> None:
    packages = {package.name: package for package in node_packages()}
    assert "torch" in packages["torch"].modules
    assert "yaml" in packages["pyyaml"].modules


def test_wheel_that_is_required_by_its_url_is_locked(
    source: Requirements, environment: NodeEnvironment, index: list[str], tmp_path: Path
) -> None:
    folder = source("required @ file://" + str(tmp_path / "index/required-1.0-py3-none-any.whl") + "\n")
    (wheel,) = lock(folder, environment, index, tmp_path / "work").wheels
    with zipfile.ZipFile(tmp_path / "work/wheels" / wheel.file) as archive:
        assert "required/__init__.py" in archive.namelist()


@pytest.mark.parametrize("included", [False, True], ids=["in the file", "in an included file"])
@pytest.mark.parametrize("userinfo", ["user:secret", "user:${WHEEL_PASSWORD}"], ids=["literal", "variable"])
def test_wheel_with_credentials_in_its_url_is_locked_without_them(
    source: Requirements,
    environment: NodeEnvironment,
    index: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    userinfo: str,
    included: bool,
) -> None:
    monkeypatch.setenv("WHEEL_PASSWORD", "secret")
    with serving(tmp_path / "index", "user:secret") as address:
        line = f"required @ http://{userinfo}@{address}/required-1.0-py3-none-any.whl\n"
        folder = source("-r private.txt\n" if included else line)
        (folder / "private.txt").write_text(line)
        result = lock(folder, environment, index, tmp_path / "work")
    assert [wheel.name for wheel in result.wheels] == ["required"]
    assert "secret" not in result.model_dump_json() + result.render()


def test_credentials_of_a_git_url_keep_the_resolved_commit() -> None:
    credentials = {"host/team/repo": "user:one", "host/team/repo2.git": "two"}
    masked = "git+https://****@host/team/repo2.git@0123abcd#subdirectory=a"
    assert restore_credentials(masked, credentials) == "git+https://two@host/team/repo2.git@0123abcd#subdirectory=a"
    assert restore_credentials("https://other/repo", credentials) == "https://other/repo"


def test_indexes_of_the_requirements_file_are_used(
    source: Requirements, environment: NodeEnvironment, index: list[str], tmp_path: Path
) -> None:
    (tmp_path / "my index").mkdir()
    wheel = Wheel(name="other").build(tmp_path).rename(tmp_path / "my index/other-1.0-py3-none-any.whl")
    with serving(wheel.parent) as address:
        folder = source(f"--find-links http://{address}/\nother\nrequired\n")
        result = lock(folder, environment, index, tmp_path / "work")
    assert [wheel.name for wheel in result.wheels] == ["other", "required"]


def test_progress_of_a_build_hides_the_credentials(
    source: Requirements, environment: NodeEnvironment, index: list[str], tmp_path: Path
) -> None:
    lines: list[str] = []
    packages = tmp_path / "packages"
    packages.mkdir()
    build_backend(packages / "mine", "py3-none-any")
    with tarfile.open(packages / "mine-1.0.tar.gz", "w:gz") as archive:
        archive.add(packages / "mine", "mine-1.0")
    with serving(packages, "user:secret") as address:
        folder = source(f"mine @ http://user:secret@{address}/mine-1.0.tar.gz\n")
        pins = resolve(folder, environment, index)
        assert pins
        result = lock_wheels(pins, environment, index, folder, packages, lines.append)
    assert [wheel.name for wheel in result.wheels] == ["mine"]
    assert any("building mine @ http://****@" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("opencv-contrib-python\ngoogle-cloud-storage==2.0\n", False),
        ("numpy==2.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n    # via -r requirements.in\n", False),
        ("a[extra]>=1,<2 ; python_version < '4'  # ./text\n\nb (>1)\n", False),
        ("a @ https://host/a-1-py3-none-any.whl\nb @ git+https://host/b@main\n", False),
        ("--extra-index-url https://host/simple\n", False),
        ("-r more.txt\n", True),
        ("  --constraint=more.txt\n", True),
        ("-e .\n", True),
        ("--find-links wheels\n", True),
        ("./mine\n", True),
        ("mine/\n", True),
        ("mine-1.0-py3-none-any.whl\n", True),
        ("mine @ file:mine\n", True),
        ("mine @ ./mine\n", True),
        ("a==1\nb @ \\\n  ./b\n", True),
    ],
)
def test_requirements_that_read_other_files_of_the_source(text: str, expected: bool) -> None:
    assert reads_other_files(text) is expected
