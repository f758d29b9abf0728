"""Problems of a job's source that are found without running it, and code that is none."""

import sys

import pytest

from trainyard.errors import Problem
from trainyard.job_source.static_checks import check_source

PYTHON = "{}.{}".format(*sys.version_info[:2])
MODULES = frozenset({"torch", "numpy", "yaml"})


def check(modules: frozenset[str] | None = MODULES, script: str = "train.py", **files: str) -> list[Problem]:
    """Check files whose names are written with `__` for a slash and without `.py`."""
    contents = {f"{name.replace('__', '/')}.py": text.encode() for name, text in files.items()}
    return check_source(contents, script, PYTHON, modules)


def test_unknown_module_is_reported_with_its_line_and_a_similar_name() -> None:
    (problem,) = check(train="import torch\n\nimport numpyy\n")
    assert (problem.code, problem.key, problem.value) == ("module_not_found", "train.py:3", "import numpyy")
    assert "numpy" in problem.fix


def test_syntax_errors_of_all_files_are_reported() -> None:
    problems = check(train="import torch\n", tools__clean="def f(:\n", other="x = 1\nreturn x\n")
    assert [(each.code, each.key.split(":")[0]) for each in problems] == [
        ("syntax_error", "other.py"),
        ("syntax_error", "tools/clean.py"),
    ]


def test_script_that_the_archive_does_not_have_is_reported() -> None:
    (problem,) = check(script="run.py", train="")
    assert problem.code == "script_missing"


@pytest.mark.parametrize(
    "text",
    [
        "import os, yaml, torch.nn as nn\nfrom numpy import array\n",
        "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import missing\n",
        "def main():\n    import wandb\n",
        "import sys\nsys.path.insert(0, '/fsx/code')\nimport mine\n",
        "from __future__ import annotations\nimport model, data.text\nfrom data import text, LIMIT\n",
        "from model import Net, late, helper\nfrom data.text import *\n",
    ],
    ids=["environment", "optional", "types", "function", "path", "modules", "names"],
)
def test_valid_imports_are_no_problem(text: str) -> None:
    model = "class Net: ...\nfor late in range(3): ...\nfrom data.text import helper\n"
    assert check(train=text, model=model, data____init__="LIMIT = 1\n", data__text="def helper(): ...\n") == []


def test_imports_of_imported_modules_are_checked() -> None:
    (problem,) = check(
        train="import model\n", model="from layers.norm import x\n", layers__norm="import missing\nx = 1\n"
    )
    assert problem.key == "layers/norm.py:1"


def test_module_that_is_not_imported_may_need_other_packages() -> None:
    assert check(train="import torch\n", setup="import missing\n") == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("from model import Nett\n", "name_not_found"),
        ("import model.layers\n", "module_not_found"),
        ("from . import model\n", "relative_import"),
        ("if __name__ == '__main__':\n    import missing\n", "module_not_found"),
    ],
)
def test_wrong_imports_of_the_source_are_reported(text: str, code: str) -> None:
    assert [problem.code for problem in check(train=text, model="class Net: ...\n")] == [code]


def test_relative_imports_of_a_package_are_followed() -> None:
    net = "from ..pkg import base\nclass Net: ...\n"
    assert check(train="import pkg\n", pkg__base="", pkg____init__="from .net import Net\n", pkg__net=net) == []


def test_names_that_a_module_defines_dynamically_are_no_problem() -> None:
    assert check(train="from model import Net\n", model="globals()['Net'] = 1\n") == []


def test_modules_are_searched_in_the_folder_of_the_script() -> None:
    assert check(script="src/train.py", src__train="import model\n", src__model="") == []
    (problem,) = check(script="src/train.py", src__train="import model\n", model="")
    assert problem.code == "module_not_found"


def test_missing_modules_of_an_unknown_environment_are_no_problem() -> None:
    assert check(None, train="import anything\n") == []


def test_folder_without_modules_does_not_hide_a_package_of_the_environment() -> None:
    assert check(train="import yaml.loader\n", yaml__example="") == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this parser knows the syntax")
def test_syntax_that_only_the_nodes_know_is_no_problem() -> None:
    text = 'type Pair = tuple[int, int]\ndef first[T](x: T) -> T: return x\nprint(f"{"x"}")\n'
    for line in text.splitlines():
        assert check_source({"train.py": line.encode()}, "train.py", "3.12", MODULES) == []
    assert check_source({"train.py": b"def f(:\n"}, "train.py", "3.12", MODULES)
