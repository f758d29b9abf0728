"""The list of private names of libraries: each exists, and each that the trainer uses is listed."""

import ast
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import torch.nn.attention.varlen  # registers its operations

from tests.trainer.conftest import ROOT
from trainer.private_apis import PRIVATE_APIS

LIBRARIES = ("torch", "s3torchconnector", "torchao", "torchdata", "torchvision", "transformers")

# Private attributes of objects of libraries that the trainer uses.
METHODS = {
    "_apply": "torch.nn.Module._apply",
    "_from_config": "transformers.PreTrainedModel._from_config",
    "_local_tensor": "torch.distributed.tensor.DTensor._local_tensor",
    "_flatten": "torch.distributed.device_mesh.DeviceMesh._flatten",
    "_unflatten": "torch.distributed.device_mesh.DeviceMesh._unflatten",
}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names in a module and their full names in a library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in LIBRARIES:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in LIBRARIES:
                    first = alias.name.split(".")[0]
                    yield (alias.asname or first, alias.name if alias.asname else first)


def full_name(node: ast.Attribute, names: dict[str, str]) -> str | None:
    """The full name of an attribute of a library; None for an attribute of another object."""
    parts, value = [node.attr], node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name) or value.id not in names:
        return None
    return ".".join([names[value.id], *reversed(parts)])


def private_names(file: Path) -> Iterator[str]:
    """Yield the private names of libraries that a file imports or has as attributes; operations without overload."""
    tree = ast.parse(file.read_text())
    names = dict(imports(tree))
    yield from filter(is_private, names.values())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if (name := full_name(node, names) or METHODS.get(node.attr)) is None:
            continue
        parts = name.split(".")
        if parts[:2] == ["torch", "ops"]:
            if len(parts) == 4 and is_private(name):
                yield name
        elif is_private(parts[-1]):
            yield name


def private_attributes(files: list[Path]) -> tuple[set[str], set[str]]:
    """Return the private attributes that classes of the files define, and those that the files use of other objects."""
    defined: set[str] = set()
    used: set[str] = set()
    for tree in (ast.parse(file.read_text()) for file in files):
        names = dict(imports(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                defined.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                defined.add(node.target.id)
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                if is_own:
                    defined.add(node.attr)
                elif full_name(node, names) is None and ast.unparse(node) != "os._exit":
                    used.add(node.attr)
    return defined, used


USED = {name for file in (ROOT / "trainer").rglob("*.py") for name in private_names(file)}


@pytest.mark.parametrize("name", PRIVATE_APIS)
def test_private_name_exists(name: str) -> None:
    if name.startswith("torch.ops."):
        namespace, operation = name.split(".")[2:]
        assert hasattr(getattr(torch.ops, namespace), operation)
    else:
        resolve_name(name)


def test_used_names_are_listed() -> None:
    assert PRIVATE_APIS.keys() >= USED


def test_listed_names_are_used() -> None:
    assert PRIVATE_APIS.keys() <= USED


def test_private_attributes_of_objects_are_listed() -> None:
    defined, used = private_attributes(list((ROOT / "trainer").rglob("*.py")))
    assert used - defined == METHODS.keys() - {"_apply"}  # a class of the trainer has that method


def test_names_are_in_order() -> None:
    assert list(PRIVATE_APIS) == sorted(PRIVATE_APIS)
