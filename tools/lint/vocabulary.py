"""Fail on retired words: `python -m tools.lint.vocabulary [PATH ...]`. The word list is `vocabulary.yaml`."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

WORD_LIST = Path(__file__).with_name("vocabulary.yaml")
_EXCLUDED = {"vocabulary.yaml", "test_vocabulary.py"}  # they contain the retired words
# Python 3.12 and newer split an f-string into several tokens.
_TEXT_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_TASK_NAME = re.compile(r"^\s*(?:- )?name: (.+)$")


@dataclass(frozen=True)
class Violation:
    """One use of a retired word: where, and the words to use instead."""

    path: Path
    line: int
    text: str
    use: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r} is retired, use: {self.use}"


class Vocabulary:
    """The retired words of names and of prose."""

    def __init__(self, file: Path = WORD_LIST) -> None:
        data = yaml.safe_load(file.read_text())
        self._names = {word: use for group, use in data["names"].items() for word in group.split(", ")}
        self._prose = [(re.compile(pattern, re.IGNORECASE), use) for pattern, use in data["prose"].items()]
        self._exact: dict[str, str] = data["exact"]
        self._exceptions = re.compile("|".join(map(re.escape, data["exceptions"])))

    def in_name(self, name: str) -> Iterator[tuple[str, str]]:
        """Retired words of an identifier, each with the words to use instead."""
        if name in self._exact:
            yield f"{name} (in {name})", self._exact[name]
        parts = "_".join(_PART.findall(self._exceptions.sub("", name))).lower()
        yield from ((f"{term} (in {name})", use) for term, use in self._names.items() if f"_{term}_" in f"_{parts}_")

    def in_prose(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Retired phrases of a text: line offset, phrase, the words to use instead."""
        for number, line in enumerate(text.splitlines()):
            for pattern, use in self._prose:
                yield from ((number, match[0], use) for match in pattern.finditer(line))


def check_python(path: Path, text: str, vocabulary: Vocabulary) -> Iterator[Violation]:
    """Names that the file defines, its comments and its string literals."""
    for name, line in defined_names(ast.parse(text)):
        yield from (Violation(path, line, word, use) for word, use in vocabulary.in_name(name))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXT_TOKENS:
            for offset, phrase, use in vocabulary.in_prose(token.string):
                yield Violation(path, token.start[0] + offset, phrase, use)


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module defines: functions, classes, arguments, variables, attributes, aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case _:
                pass


def check_text(path: Path, text: str, vocabulary: Vocabulary) -> Iterator[Violation]:
    """Prose of a Markdown page; comments and task names of a YAML file, a script or a template."""
    for number, line in enumerate(text.splitlines(), start=1):
        prose = line
        if path.suffix not in (".md", ".json"):
            name = _TASK_NAME.match(line)
            prose = name[1] if name else line.partition("#")[2]
        yield from (Violation(path, number, phrase, use) for _, phrase, use in vocabulary.in_prose(prose))


def check(path: Path, vocabulary: Vocabulary) -> Iterator[Violation]:
    """Retired words of a file, its name included."""
    yield from (Violation(path, 1, word, use) for word, use in vocabulary.in_name(path.stem))
    text = path.read_text()
    if path.suffix == ".py":
        yield from check_python(path, text, vocabulary)
    else:
        yield from check_text(path, text, vocabulary)


def tracked(paths: list[str]) -> list[Path]:
    """Files of the repository below `paths` that the lint reads."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *paths], capture_output=True, text=True, check=True
    )
    suffixes = {".py", ".md", ".yml", ".yaml", ".sh", ".j2", ".txt", ".toml", ".json"}
    files = [Path(name) for name in listed.stdout.splitlines()]
    return [
        file
        for file in files
        if (file.suffix in suffixes or file.name in ("Makefile", "launcher"))
        and file.exists()
        and file.name not in _EXCLUDED
        and "graphs" not in file.parts
    ]


def main(paths: list[str]) -> int:
    """Print each violation; 1 where there is any."""
    vocabulary = Vocabulary()
    violations = [violation for path in tracked(paths) for violation in check(path, vocabulary)]
    for violation in violations:
        print(violation)
    if violations:
        print(f"{len(violations)} retired words: see {WORD_LIST.name}", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
