"""The common structure of all roles: documented options, a final verification, and prefixed variable names."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).parents[3] / "playbooks" / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir() if path.is_dir())
README_LENGTH = 140


def load_yaml(file: Path) -> Any:
    """Return the content of a YAML file; None if it is missing."""
    return yaml.safe_load(file.read_text()) if file.exists() else None


def tasks(role: str) -> list[dict[str, Any]]:
    """Return every task of a role, including those inside blocks."""
    result: list[dict[str, Any]] = []
    queue = [task for file in sorted((ROLES / role / "tasks").glob("*.yml")) for task in load_yaml(file) or []]
    while queue:
        task = queue.pop()
        result.append(task)
        for part in ("block", "rescue", "always"):
            queue.extend(task.get(part, []))
    return result


def options(role: str) -> dict[str, dict[str, Any]]:
    """Return the documented options of a role."""
    specs = load_yaml(ROLES / role / "meta/argument_specs.yml") or {}
    result: dict[str, dict[str, Any]] = specs.get("argument_specs", {}).get("main", {}).get("options", {})
    return result


def unprefixed_variables(role: str) -> list[str]:
    """Return the variables that a role defines without its prefix."""
    files = [*(ROLES / role / "defaults").glob("*.yml"), *(ROLES / role / "vars").glob("*.yml")]
    names = {name for file in files for name in load_yaml(file) or {}} | set(options(role))
    for task in tasks(role):
        names |= {task["register"]} if "register" in task else set()
        names |= set(task.get("ansible.builtin.set_fact", {}))
        if "ansible.builtin.include_role" not in task:  # its variables belong to the included role
            names |= set(task.get("vars", {}))
    return sorted(name for name in names if not name.startswith(f"{role}_"))


def ends_in_verification(file: Path) -> bool:
    """Return whether the last task imports verify.yml, or conditionally includes a task file that ends so."""
    last = (load_yaml(file) or [{}])[-1]
    if last.get("ansible.builtin.import_tasks") == "verify.yml":
        return (file.parent / "verify.yml").exists()
    included = last.get("ansible.builtin.include_tasks")
    return included is not None and ends_in_verification(file.parent / included)


def structure_problems(role: str) -> list[str]:
    """Return one message per difference from the common structure."""
    folder, problems = ROLES / role, []
    defaults, documented = load_yaml(folder / "defaults/main.yml") or {}, options(role)
    if not (folder / "meta/argument_specs.yml").exists():
        problems.append("no meta/argument_specs.yml")
    optional = {name: option.get("default") for name, option in documented.items() if not option.get("required")}
    if optional != defaults:
        names = sorted(
            name for name in optional.keys() | defaults if optional.get(name, ...) != defaults.get(name, ...)
        )
        problems.append(f"meta/argument_specs.yml and defaults/main.yml differ in {', '.join(names)}")
    if undocumented := sorted(name for name, option in documented.items() if {"type", "description"} - option.keys()):
        problems.append(f"no type or description of {', '.join(undocumented)}")
    readme = (folder / "README.md").read_text().splitlines() if (folder / "README.md").exists() else []
    if len(readme) != 1 or len(readme[0]) > README_LENGTH:
        problems.append(f"README.md is not one line of at most {README_LENGTH} characters")
    if not ends_in_verification(folder / "tasks/main.yml"):
        problems.append("tasks/main.yml does not end in tasks/verify.yml")
    if names := unprefixed_variables(role):
        problems.append(f"variables without the prefix of the role: {', '.join(names)}")
    if (folder / "handlers").exists():
        problems.append("handlers: an interrupted run does not execute them, and the next run does not notify them")
    if [task for task in tasks(role) if "lock_timeout" not in task.get("ansible.builtin.apt", {"lock_timeout": 1})]:
        problems.append("an apt task does not wait for the lock")
    modules = {key for task in tasks(role) for key in task if "." in key}
    if foreign := sorted(module for module in modules if not module.startswith("ansible.builtin.")):
        problems.append(f"modules that are not part of ansible-core: {', '.join(foreign)}")
    return problems


@pytest.mark.parametrize("role", NAMES)
def test_a_role_has_the_common_structure(role: str) -> None:
    assert structure_problems(role) == []


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("defaults/main.yml", ("container_gpus: true", "container_gpus: false"), "differ in container_gpus"),
        (
            "defaults/main.yml",
            ("container_data_root:", "data_root:"),
            "variables without the prefix of the role: data_root",
        ),
        ("meta/argument_specs.yml", ("type: str", "choices: [a]"), "no type or description of container_name"),
        ("tasks/main.yml", ("import_tasks: verify.yml", "import_tasks: other.yml"), "does not end in tasks/verify.yml"),
        ("tasks/install.yml", ("    lock_timeout: 600\n", ""), "does not wait for the lock"),
        ("tasks/install.yml", ("ansible.builtin.apt:", "community.general.apt:"), "community.general.apt"),
        ("README.md", ("Docker", "#\nDocker"), "README.md is not one line"),
    ],
)
def test_a_different_structure_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, change: tuple[str, str], message: str
) -> None:
    for original in (ROLES / "container").rglob("*"):
        if original.is_file():
            copy = tmp_path / original.relative_to(ROLES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(original.read_bytes())
    monkeypatch.setitem(globals(), "ROLES", tmp_path)
    assert structure_problems("container") == []
    changed = tmp_path / "container" / file
    text = changed.read_text()
    assert change[0] in text
    changed.write_text(text.replace(change[0], change[1], 1))
    assert any(message in line for line in structure_problems("container")), structure_problems("container")
