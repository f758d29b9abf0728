"""Name and wrapper program of the job's container: the agent and the playbook use the same values."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.node.agent.job_container import CLIENT_VARIABLES, VARIABLE_PREFIX
from trainyard.node.identity import CONTAINER_NAME, CONTAINER_WRAPPER

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


def role_variables(role: str) -> dict[str, Any]:
    """Return the variables that node.yml passes to a role."""
    (play,) = yaml.safe_load((PLAYBOOKS / "node.yml").read_text())
    includes = [task for task in play["tasks"] if task.get("ansible.builtin.include_role", {}).get("name") == role]
    variables: dict[str, Any] = includes[0]["vars"]
    return variables


def test_the_playbook_passes_the_values_of_the_agent_to_the_role() -> None:
    container = role_variables("container")
    for name in ("name", "wrapper", "variable_prefix", "client_variables"):
        assert container[f"container_{name}"] == f"{{{{ job_container.{name} }}}}"
    assert container["container_image"] == "{{ job_container.image or '' }}"


@pytest.mark.parametrize(
    "value", [f"{CONTAINER_NAME} ", f"{CONTAINER_NAME}\n", CONTAINER_WRAPPER, VARIABLE_PREFIX, CLIENT_VARIABLES]
)
def test_no_file_of_the_playbooks_repeats_the_values(value: str) -> None:
    files = [path for path in PLAYBOOKS.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [str(path) for path in files if value in path.read_text()] == []
