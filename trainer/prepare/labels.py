"""Which images there are, and of what class: by their folders, or by a list."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainer.prepare.sources import SourceFile, list_files, open_file
from trainyard.base import InputError, Problem

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_LISTS = (".csv", ".jsonl", ".ndjson")
_NAME, _LABEL = "file_name", "label"
_RECORD = 512  # of a tar file, bytes


@dataclass(frozen=True)
class Image:
    """One image file; `label` is the number of its class."""

    file: SourceFile
    label: int

    @property
    def size(self) -> int:
        """Bytes of it in a tar file, with its label: two headers, and both contents in full records."""
        return 3 * _RECORD + -(-self.file.size // _RECORD) * _RECORD


def labelled(source: str) -> tuple[list[Image], tuple[str, ...]]:
    """The images and the names of their classes, in order. Raises InputError where there are none, or one class."""
    if PurePosixPath(source).suffix.lower() in _LISTS:
        named = _of_list(source)
    else:
        named = [(file, _class_of(file)) for file in list_files([source]) if file.suffix in SUFFIXES]
    classes = sorted({name for _, name in named}, key=_in_order)
    if not named:
        raise _mistake(source, "holds no images", "Name a folder with a folder for each class, or a list")
    if len(classes) < 2:
        raise _mistake(source, f"has one class only, {classes[0]!r}", "Give each class a folder")
    numbers = {name: number for number, name in enumerate(classes)}
    return [Image(file, numbers[name]) for file, name in named], tuple(classes)


def _class_of(file: SourceFile) -> str:
    """The folder right under the source."""
    parts = PurePosixPath(file.name).parts
    if len(parts) < 2:
        raise InputError([file.problem("lies in no class's folder", "Put it into one, or give a list")])
    return parts[0]


def _in_order(name: str) -> tuple[int, str]:
    """Numbers by their value, before names."""
    return (int(name), "") if name.isascii() and name.isdigit() else (1 << 62, name)


def _of_list(source: str) -> list[tuple[SourceFile, str]]:
    """Files are relative to the list; all must be there."""
    folder = source.rpartition("/")[0] or ("" if "/" not in source else "/")
    there = {file.name: file for file in list_files([folder or "."])}
    named, problems = [], []
    for number, row in _rows(list_files([source])[0]):
        name, label = row.get(_NAME), row.get(_LABEL)
        if not name or label is None or label == "":
            why = f"line {number} has no {_LABEL if name else _NAME}"
            raise _mistake(source, why, f"Give each image its {_NAME}, relative to the list, and its {_LABEL}")
        file = there.get(str(PurePosixPath(str(name))))
        if file is None:
            problems.append(_problem(source, f"line {number}: there is no file {name}", "Mend the list"))
        else:
            named.append((file, str(label)))
    if problems:
        raise InputError(problems[:10])
    return named


def _rows(file: SourceFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines of a list, by their number."""
    with open_file(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
        try:
            if file.suffix == ".csv":
                reader = csv.DictReader(stream)
                for row in reader:
                    yield reader.line_num, row
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise _mistake(file.uri, f"line {number} is no object", "Mend the list")
                    yield number, row
        except json.JSONDecodeError as error:
            raise _mistake(file.uri, f"line {number} is no JSON: {error}", "Mend the list") from None
        except UnicodeDecodeError as error:
            raise _mistake(file.uri, f"is no UTF-8: {error}", "Convert the list") from None


def _problem(source: str, why: str, fix: str) -> Problem:
    return Problem(key="SOURCE", value=source, why=why, fix=fix)


def _mistake(source: str, why: str, fix: str) -> InputError:
    return InputError([_problem(source, why, fix)])
