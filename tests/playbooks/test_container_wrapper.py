"""The wrapper of the role `container`, as /bin/sh runs it, with a stand-in for the client of Docker."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from trainyard.node.agent import job_container
from trainyard.node.agent.job_container import CLIENT_VARIABLES, VARIABLE_PREFIX, container_variables

TEMPLATE = Path(__file__).parents[2] / "playbooks/roles/container/templates/run-in-container.j2"
IMAGE = "image:1"
# A client that writes its variables, and those of the container, to the file `calls`. Its file of variables has one of
# them in each line; without a value in its argument it takes that from its environment, as `docker run` does.
DOCKER = """#!{python}
import json, os, sys
variables = {{}}
for argument in sys.argv[1:]:
    if argument.startswith("--env-file="):
        lines = open(argument.partition("=")[2]).read().splitlines()
        variables |= dict(line.split("=", 1) for line in lines if line)
for argument in sys.argv[1:]:
    if argument.startswith("--env="):
        name, separator, value = argument.removeprefix("--env=").partition("=")
        variables[name] = value if separator else os.environ[name]
if sys.argv[1] == "run":
    print(json.dumps({{"client": dict(os.environ), "container": variables, "arguments": sys.argv[1:]}}))
"""


class Wrapper:
    """The rendered wrapper in a folder."""

    def __init__(self, folder: Path) -> None:
        environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)
        environment.filters["quote"] = shlex.quote
        values = {"container_name": "job", "container_user": "root", "container_gpus": False, "container_mounts": []}
        values |= {"container_variable_prefix": VARIABLE_PREFIX, "container_client_variables": CLIENT_VARIABLES}
        self.script, programs = folder / "run-in-container", folder / "bin"
        self.script.write_text(environment.from_string(TEMPLATE.read_text()).render(values))
        programs.mkdir()
        (programs / "docker").write_text(DOCKER.format(python=sys.executable))
        (programs / "docker").chmod(0o755)
        self.variables = {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run(self, variables: dict[str, str]) -> dict[str, Any]:
        """Environments of client and container, and arguments of the client."""
        command = ["/bin/sh", str(self.script), IMAGE, "python"]
        process = subprocess.run(command, env=self.variables | variables, capture_output=True, text=True, check=True)
        assert process.stderr == ""
        content: dict[str, Any] = json.loads(process.stdout)
        return content


@pytest.fixture
def wrapper(tmp_path: Path) -> Wrapper:
    return Wrapper(tmp_path)


JOB = {
    "ENVIRONMENT_NAME": "production",
    "PATH_TO_DATA": "/data",
    "PATH": "/nowhere",
    "LD_PRELOAD": "/nowhere/hostile.so",
    "DOCKER_HOST": "tcp://203.0.113.9:2375",
    "TMPDIR": "/scratch",
    "HOME": "/opt/trainyard/home",
    "QUOTED": "a 'b' \"c\" $HOME `id` \\n # é ",
    "EMPTY": "",
    "LONG": "x" * 15_000,
}


def test_the_container_has_all_variables_of_the_job(wrapper: Wrapper) -> None:
    """Names are compared completely: PATH_TO_DATA is not PATH."""
    variables = JOB | {"KEY": "-----BEGIN KEY-----\nabc\n", "TABLE": "y" * 70_000}
    container = wrapper.run(container_variables(IMAGE, variables))["container"]
    assert {name: value for name, value in container.items() if name in variables} == variables


def test_the_client_of_docker_does_not_use_variables_of_the_job(wrapper: Wrapper) -> None:
    started = wrapper.run(container_variables(IMAGE, JOB))
    assert {name: value for name, value in started["client"].items() if JOB.get(name) == value} == {}
    assert not [argument for argument in started["arguments"] if "nowhere" in argument]


def test_the_container_has_the_variables_of_the_node_except_those_of_its_programs(wrapper: Wrapper) -> None:
    node = {"NCCL_DEBUG": "INFO", "HOME": "/root", "LD_LIBRARY_PATH": "", "XDG_RUNTIME_DIR": "/run"}
    container = wrapper.run(node | container_variables(IMAGE, {"HOME": "/home"}))["container"]
    assert (container["NCCL_DEBUG"], container["HOME"]) == ("INFO", "/home")
    assert not container.keys() & {"LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "PATH", f"{VARIABLE_PREFIX}HOME"}


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "DOCKER_CONFIG"])
def test_a_variable_of_several_lines_that_the_client_would_use_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: the value has several lines"):
        container_variables(IMAGE, {name: "first\nsecond"})


def test_without_a_container_variables_are_unchanged() -> None:
    assert container_variables(None, JOB) == JOB


def test_the_file_of_variables_has_no_line_that_docker_refuses() -> None:
    longest = len(VARIABLE_PREFIX) + 255 + 4 * job_container._LINE_CHARACTERS
    assert longest < 1 << 16
