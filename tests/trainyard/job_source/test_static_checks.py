"""Problems of a job's source that are found without running it, and code that is none."""

import sys

import pytest

from trainyard.errors import Problem
from trainyard.job_source.static_checks import check_source

PYTHON = "{}.{}".format(*sys.version_info[:2])
MODULES = frozenset({"torch", "numpy", "yaml"})


def check(modules: frozenset[str] | None = MODULES, script: str = "train.py", **files: str) -> list[Problem]:
    """Check files, in whose names `__` replaces a slash, `____init__` replaces `/__init__`, and `.py` is missing."""
    names = {
        name: name.replace("____init__", "/<init>").replace("__", "/").replace("<init>", "__init__") for name in files
    }
    contents = {f"{names[name]}.py": text.encode() for name, text in files.items()}
    return check_source(contents, script, PYTHON, modules)


def test_unknown_module_is_reported_with_its_line_and_a_similar_name() -> None:
    (problem,) = check(train="import torch\n\nimport numpyy\n")
    assert (problem.code, problem.key, problem.value) == ("module_not_found", "train.py:3", "import numpyy")
    assert "numpy" in problem.fix


def test_syntax_errors_of_imported_modules_are_reported() -> None:
    problems = check(
        train="import tools.clean, other\n", tools____init__="", tools__clean="def f(:\n", other="x = 1\nreturn x\n"
    )
    assert [(each.code, each.key.split(":")[0]) for each in problems] == [
        ("syntax_error", "other.py"),
        ("syntax_error", "tools/clean.py"),
    ]


def test_syntax_error_of_a_file_that_is_not_imported_is_no_problem() -> None:
    assert check(train="import torch\n", tests__data__python2="print 'x'\n", template="import {{ package }}\n") == []


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
    files = {"pkg__base": "", "pkg____init__": "from .sub.net import Net\n", "pkg__sub__net": "from .. import base\n"}
    assert [problem.code for problem in check(MODULES, train="import pkg\n", **files)] == ["name_not_found"]
    files["pkg__sub__net"] += "class Net: ...\n"
    assert check(MODULES, train="import pkg\n", **files) == []


@pytest.mark.parametrize(
    "model",
    [
        "globals()['Net'] = 1\n",
        "import sys\nsys.modules[__name__] = Lazy()\n",
        "vars().update(Net=1)\n",
        "locals()['Net'] = 1\n",
        "match {}:\n    case {**Net}:\n        pass\n",
        "def __getattr__(name): ...\n",
        "from torch import *\n",
    ],
)
def test_names_that_a_module_defines_dynamically_are_no_problem(model: str) -> None:
    assert check(train="from model import Net\n", model=model) == []


@pytest.mark.parametrize(
    "text",
    [
        "import __main__\n",
        "from model import __spec__, __dict__\n",
        "import pkg\npkg.late = 1\nfrom pkg import late\n",
        "from pkg import part\n",
        "import sys\nsys.path.insert(0, '/fsx/code')\nfrom model import of_fsx\n",
        "__package__ = 'pkg'\nfrom . import part\n",
        "from sys import path\npath.insert(0, '/fsx/code')\nimport mine\n",
    ],
    ids=["main", "attributes", "assigned", "folder", "path", "package", "path of sys"],
)
def test_valid_names_are_no_problem(text: str) -> None:
    assert check(train=text, model="", pkg____init__="", pkg__part__module="") == []


def test_submodule_that_a_package_replaces_by_a_name_is_not_imported() -> None:
    assert check(train="from pkg import net\n", pkg____init__="net = None\n", pkg__net="import missing\n") == []


def test_package_may_change_its_path() -> None:
    assert check(train="import pkg.other\n", pkg____init__="__path__.append('/fsx/code')\n") == []


@pytest.mark.parametrize(("python", "codes"), [("3.10", []), (PYTHON, ["module_not_found"])], ids=["other", "same"])
def test_standard_library_of_another_python_may_have_other_modules(python: str, codes: list[str]) -> None:
    name = "annotationlib" if sys.version_info < (3, 14) else "cgi"
    problems = check_source({"train.py": f"import {name}\n".encode()}, "train.py", python, MODULES)
    assert [problem.code for problem in problems] == codes


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
