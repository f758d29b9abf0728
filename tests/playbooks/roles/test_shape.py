"""What every role has in common: a stated interface, a verification, and names of its own."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).parents[3] / "playbooks" / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir() if path.is_dir())
README_LENGTH = 140


def loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text()) if file.exists() else None


def tasks(role: str) -> list[dict[str, Any]]:
    """Every task of a role's files, those inside blocks too."""
    found: list[dict[str, Any]] = []
    waiting = [task for file in sorted((ROLES / role / "tasks").glob("*.yml")) for task in loaded(file) or []]
    while waiting:
        task = waiting.pop()
        found.append(task)
        for part in ("block", "rescue", "always"):
            waiting.extend(task.get(part, []))
    return found


def options(role: str) -> dict[str, dict[str, Any]]:
    specs = loaded(ROLES / role / "meta/argument_specs.yml") or {}
    found: dict[str, dict[str, Any]] = specs.get("argument_specs", {}).get("main", {}).get("options", {})
    return found


def misnamed(role: str) -> list[str]:
    """Variables that a role defines under a name that is not its own."""
    files = [*(ROLES / role / "defaults").glob("*.yml"), *(ROLES / role / "vars").glob("*.yml")]
    names = {name for file in files for name in loaded(file) or {}} | set(options(role))
    for task in tasks(role):
        names |= {task["register"]} if "register" in task else set()
        names |= set(task.get("ansible.builtin.set_fact", {}))
        if "ansible.builtin.include_role" not in task:  # whose variables are the included role's
            names |= set(task.get("vars", {}))
    return sorted(name for name in names if not name.startswith(f"{role}_"))


def verifies(file: Path) -> bool:
    """Whether its last task brings in verify.yml; or a file of tasks that does, where there may be nothing to do."""
    last = (loaded(file) or [{}])[-1]
    if last.get("ansible.builtin.import_tasks") == "verify.yml":
        return (file.parent / "verify.yml").exists()
    further = last.get("ansible.builtin.include_tasks")
    return further is not None and verifies(file.parent / further)


def shapeless(role: str) -> list[str]:
    """What a role lacks of the common shape, in words."""
    folder, told = ROLES / role, []
    given, stated = loaded(folder / "defaults/main.yml") or {}, options(role)
    if not (folder / "meta/argument_specs.yml").exists():
        told.append("no meta/argument_specs.yml")
    optional = {name: option.get("default") for name, option in stated.items() if not option.get("required")}
    if optional != given:
        differ = sorted(name for name in optional.keys() | given if optional.get(name, ...) != given.get(name, ...))
        told.append(f"meta/argument_specs.yml and defaults/main.yml differ in {', '.join(differ)}")
    if untold := sorted(name for name, option in stated.items() if {"type", "description"} - option.keys()):
        told.append(f"no type or description of {', '.join(untold)}")
    readme = (folder / "README.md").read_text().splitlines() if (folder / "README.md").exists() else []
    if len(readme) != 1 or len(readme[0]) > README_LENGTH:
        told.append(f"README.md is not one line of at most {README_LENGTH} characters")
    if not verifies(folder / "tasks/main.yml"):
        told.append("tasks/main.yml does not end in tasks/verify.yml")
    if names := misnamed(role):
        told.append(f"variables without its name: {', '.join(names)}")
    if (folder / "handlers").exists():
        told.append("handlers: a run that is killed before them leaves things undone")
    if [task for task in tasks(role) if "lock_timeout" not in task.get("ansible.builtin.apt", {"lock_timeout": 1})]:
        told.append("an apt task does not wait for the lock")
    modules = {key for task in tasks(role) for key in task if "." in key}
    if foreign := sorted(module for module in modules if not module.startswith("ansible.builtin.")):
        told.append(f"modules that are not Ansible's own: {', '.join(foreign)}")
    return told


@pytest.mark.parametrize("role", NAMES)
def test_a_role_has_the_common_shape(role: str) -> None:
    assert shapeless(role) == []


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("defaults/main.yml", ("container_gpus: true", "container_gpus: false"), "differ in container_gpus"),
        ("defaults/main.yml", ("container_data:", "data:"), "variables without its name: data"),
        ("meta/argument_specs.yml", ("type: bool", "choices: [true]"), "no type or description of container_gpus"),
        ("tasks/main.yml", ("import_tasks: verify.yml", "import_tasks: other.yml"), "does not end in tasks/verify.yml"),
        ("tasks/install.yml", ("    lock_timeout: 600\n", ""), "does not wait for the lock"),
        ("tasks/install.yml", ("ansible.builtin.apt:", "community.general.apt:"), "community.general.apt"),
        ("README.md", ("Docker", "#\nDocker"), "README.md is not one line"),
    ],
)
def test_what_is_out_of_shape_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, change: tuple[str, str], told: str
) -> None:
    for original in (ROLES / "container").rglob("*"):
        if original.is_file():
            copy = tmp_path / original.relative_to(ROLES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(original.read_bytes())
    monkeypatch.setitem(globals(), "ROLES", tmp_path)
    assert shapeless("container") == []
    spoilt = tmp_path / "container" / file
    text = spoilt.read_text()
    assert change[0] in text
    spoilt.write_text(text.replace(change[0], change[1], 1))
    assert any(told in line for line in shapeless("container")), shapeless("container")
