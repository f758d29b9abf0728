"""Check the source of a custom job without running it: syntax, the script, and the modules that it imports.

Checked are the imports that run when the script starts: those at the top level of the script and of the modules of the
source that it imports, and the syntax of these files. An import within `try` or a function may be optional, so it is
not checked. Only what fails on each node is a problem: code that may define a module or a name is none.
"""

import ast
import posixpath
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from trainyard.errors import Problem, did_you_mean

IGNORE_FILE = ".trainyardignore"
# Code that changes where modules are found: which modules and names exist is then not known.
_PATH_CHANGES = (
    "sys.path",
    "sys.modules",
    "from sys import",
    "import sys as",
    "addsitedir",
    "sys.meta_path",
    "__path__",
    "__package__",
)
# Names whose use may define any name of a module.
_DYNAMIC = frozenset(["*", "__getattr__", "exec", "globals", "locals", "setattr", "vars"])
_MODULE_ATTRIBUTES = frozenset([*dir(ModuleType), *dir(ModuleType("")), "__builtins__", "__cached__", "__file__"])
# Modules that Python 3.12, 3.13 or 3.14 has added or removed, by its "What's New" page.
_CHANGED_MODULES = frozenset(
    [
        *("aifc", "annotationlib", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "compression", "crypt"),
        *("distutils", "imghdr", "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes"),
        *("smtpd", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib"),
    ]
)
# Syntax of Python 3.12 that the parser of 3.11 refuses: type parameters, and nested quotes in f-strings.
_TYPE_PARAMETERS = re.compile(r"\s*(type\s+\w+|(async\s+)?def\s+\w+\s*\[|class\s+\w+\s*\[)")
_EXTENSIONS = (".so", ".pyd")


@dataclass
class Source:
    """The files of a job's source. `files`: path -> content. `script`: path of the script. `python`: of the nodes.

    `problems`: those of the syntax of the files that were parsed.
    """

    files: Mapping[str, bytes]
    script: str
    python: str
    problems: list[Problem] = field(default_factory=list)
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script = posixpath.normpath(self.script)
        self.root = posixpath.dirname(self.script)  # torchrun's Python has the script's folder first in its path
        self._folders = {parent for path in self.files for parent in _parents(path)}

    def find(self, parts: list[str]) -> list[str] | None:
        """Return the files that an import of the module `parts` runs; None if the source does not have the module.

        A folder without `__init__.py` has none, and a compiled module has none.
        """
        folder, files = self.root, []
        for number, part in enumerate(parts, 1):
            path = posixpath.join(folder, part)
            if f"{path}/__init__.py" in self.files:
                files.append(f"{path}/__init__.py")
            elif number == len(parts) and f"{path}.py" in self.files:
                files.append(f"{path}.py")
            elif self._is_compiled(path):
                return files
            elif path not in self._folders:
                return None
            folder = path
        return files

    def has_package(self, name: str) -> bool:
        """Return whether a module or package of this name is in the source, not only a folder."""
        return bool(self.find([name])) or self._is_compiled(posixpath.join(self.root, name))

    def has_folder(self, name: str) -> bool:
        """Return whether the script's folder has a folder of this name."""
        return posixpath.join(self.root, name) in self._folders

    def _is_compiled(self, path: str) -> bool:
        return any(name.startswith(f"{path}.") and name.endswith(_EXTENSIONS) for name in self.files)

    def parse(self, path: str) -> ast.Module | None:
        """Return the syntax tree of a file; None if its syntax is a problem, or newer than this Python."""
        if path not in self._trees:
            self._trees[path] = self._parse(path)
        return self._trees[path]

    def _parse(self, path: str) -> ast.Module | None:
        fix = "Correct the file: the script imports it" if path != self.script else "Correct the script"
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(self.files[path], path)
                compile(tree, path, "exec", dont_inherit=True)  # finds errors such as a `return` outside a function
            return tree
        except SyntaxError as error:
            if not (_parser_is_older(self.python) and _may_be_newer_syntax(error)):
                key, text = f"{path}:{error.lineno or 1}", (error.text or "").strip() or None
                reason = f"{type(error).__name__}: {error.msg}"
                self.problems.append(Problem(key, text, reason, fix, "syntax_error"))
        except (ValueError, RecursionError) as error:  # null bytes
            self.problems.append(Problem(path, None, f"cannot be parsed: {error}", fix, "syntax_error"))
        return None


def check_source(files: Mapping[str, bytes], script: str, python: str, modules: frozenset[str] | None) -> list[Problem]:
    """Return the problems of a job's source, those of the syntax first.

    `files`: path -> content. `python`: Python version of the nodes. `modules`: top-level modules of the job's
    environment on nodes, without the standard library; None: not known, and only modules of the source are checked.
    """
    source = Source(files, script, python)
    if source.script not in files:
        fix = f"Begin job.command with a Python script of job.source that neither .gitignore nor {IGNORE_FILE} excludes"
        fix = did_you_mean(script, [path for path in files if path.endswith(".py")]) + fix
        return [Problem("job.command", script, "no such file in the archive of job.source", fix, "script_missing")]
    problems = _ImportCheck(source, modules).problems()
    return sorted(source.problems, key=lambda problem: problem.key) + problems


def _parser_is_older(python: str) -> bool:
    return sys.version_info[:2] < tuple(int(part) for part in python.split("."))


def _may_be_newer_syntax(error: SyntaxError) -> bool:
    return error.msg.startswith("f-string") or bool(_TYPE_PARAMETERS.match(error.text or ""))


class _ImportCheck:
    """Follows the imports of the script through the modules of the source."""

    def __init__(self, source: Source, modules: frozenset[str] | None) -> None:
        self._source, self._modules = source, modules
        self._standard_library = set(sys.stdlib_module_names) | {"__main__"}
        if source.python != "{}.{}".format(*sys.version_info[:2]):
            self._standard_library |= _CHANGED_MODULES
        self._problems: list[Problem] = []
        self._missing_names: list[tuple[str, Problem]] = []
        self._assigned: set[str] = set()  # attributes that a file assigns, also of modules
        self._pending, self._visited = [source.script], {source.script}
        self._path_changes = False

    def problems(self) -> list[Problem]:
        """Return the problems; none if a file changes where modules are found."""
        while self._pending:
            path = self._pending.pop(0)
            tree = self._source.parse(path)
            text = self._source.files[path].decode(errors="replace")
            self._path_changes |= any(change in text for change in _PATH_CHANGES)
            if tree is None:
                continue
            attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
            self._assigned |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
            for statement in _top_level_imports(tree, path == self._source.script):
                self._check(path, statement)
        names = [problem for name, problem in self._missing_names if name not in self._assigned]
        return [] if self._path_changes else self._problems + names

    def _check(self, path: str, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._require(path, node, alias.name.split("."))
            return
        package = self._package(path, node) if node.level else []
        if package is None:
            return
        parts = [*package, *(node.module.split(".") if node.module else [])]
        files = self._require(path, node, parts) if parts else None
        if files is not None:
            self._check_names(path, node, parts, files)

    def _package(self, path: str, node: ast.ImportFrom) -> list[str] | None:
        """Return the package that a relative import is relative to; None if it has none, which is a problem."""
        relative = posixpath.relpath(path, self._source.root or ".")
        parts = relative.removesuffix(".py").split("/")
        parts = parts[: len(parts) - node.level]
        if path != self._source.script and parts and ".." not in parts:
            return parts
        reason = "ImportError: attempted relative import with no known parent package"
        fix = "Write the import without the leading dot: the script's folder is in the path"
        self._problems.append(self._problem(path, node, reason, fix, "relative_import"))
        return None

    def _require(self, path: str, node: ast.Import | ast.ImportFrom, parts: list[str]) -> list[str] | None:
        """Follow a module of the source and return its files; None if it is of the environment or missing."""
        top, is_known = parts[0], self._modules is None or parts[0] in self._modules
        if top in sys.builtin_module_names or top == "__future__":
            return None
        is_own = self._source.has_package(top)
        if not is_own and (top in self._standard_library or (is_known and self._modules is not None)):
            return None
        files = self._source.find(parts)
        # A package runs before its missing module fails, and may change its path.
        parents = [self._source.find(parts[:number]) for number in range(1, len(parts))] if files is None else [files]
        new = {file: None for parent in parents for file in parent or () if file not in self._visited}
        self._visited.update(new)
        self._pending += new
        if files is not None:
            return files
        if not is_own and is_known:
            return None
        known = self._standard_library | set(self._modules or ()) | self._own_names()
        name = ".".join(parts)
        is_local = is_own or self._source.has_folder(top)
        where = "in job.source" if is_local else "in job.source, its requirements or the nodes' environment"
        reason = f"ModuleNotFoundError: No module named {name!r} {where}"
        fix = (
            f"{did_you_mean(top, known - {top})}Correct the name, or add its package to requirements.txt in job.source"
        )
        self._problems.append(self._problem(path, node, reason, fix, "module_not_found"))
        return None

    def _own_names(self) -> set[str]:
        prefix = f"{self._source.root}/" if self._source.root else ""
        below = [path.removeprefix(prefix) for path in self._source.files if path.startswith(prefix)]
        return {path.split("/")[0].removesuffix(".py") for path in below if path.endswith(".py")}

    def _check_names(self, path: str, node: ast.ImportFrom, parts: list[str], files: list[str]) -> None:
        """Check the names that are imported from a module of the source."""
        is_module = bool(files) and posixpath.basename(files[-1]).removesuffix(".py") in (parts[-1], "__init__")
        tree = self._source.parse(files[-1]) if is_module else None
        for alias in node.names:
            if tree is not None and _may_define(tree, alias.name):
                continue
            if self._source.find([*parts, alias.name]) is not None:
                self._require(path, node, [*parts, alias.name])
            elif tree is not None:
                module = ".".join(parts)
                reason = f"ImportError: cannot import name {alias.name!r} from {module!r} ({files[-1]})"
                fix = f"{did_you_mean(alias.name, _bound_names(tree))}Correct the name"
                self._missing_names.append((alias.name, self._problem(path, node, reason, fix, "name_not_found")))

    def _problem(self, path: str, node: ast.stmt, reason: str, fix: str, code: str) -> Problem:
        return Problem(f"{path}:{node.lineno}", ast.unparse(node), reason, fix, code)


def _top_level_imports(tree: ast.Module, is_script: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in tree.body:
        body = node.body if is_script and isinstance(node, ast.If) and _is_main_guard(node.test) else [node]
        for statement in body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                yield statement


def _is_main_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _may_define(tree: ast.Module, name: str) -> bool:
    names = _bound_names(tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return name in names | _MODULE_ATTRIBUTES | {"*"} or not _DYNAMIC.isdisjoint(names | used)


def _bound_names(tree: ast.Module) -> set[str]:
    """Return all names that any statement of the module binds, also within functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        elif isinstance(node, ast.Global):
            names.update(node.names)
    return names


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path
