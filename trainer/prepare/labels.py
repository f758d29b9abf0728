"""Lists images with their classes, by their folders or by a list file."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainer.prepare.sources import SourceFile, list_files, open_file
from trainyard.errors import InputError, Problem

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_LIST_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_NAME, _LABEL = "file_name", "label"
_TAR_RECORD_BYTES = 512


@dataclass(frozen=True)
class Image:
    """One image file; `label` is the number of its class."""

    file: SourceFile
    label: int

    @property
    def size(self) -> int:
        """Size in a tar file with its label, in bytes: two headers, and both contents in whole records."""
        return 3 * _TAR_RECORD_BYTES + -(-self.file.size // _TAR_RECORD_BYTES) * _TAR_RECORD_BYTES


def list_labelled_images(source: str) -> tuple[list[Image], tuple[str, ...]]:
    """Return the images, and the names of their classes in order of their numbers.

    Raises InputError if there are no images, or fewer than two classes.
    """
    if PurePosixPath(source).suffix.lower() in _LIST_SUFFIXES:
        named = _read_list(source)
    else:
        named = [(file, _class_of(file)) for file in list_files([source]) if file.suffix in SUFFIXES]
    classes = sorted({name for _, name in named}, key=_sort_key)
    if not named:
        raise _input_error(
            source, "holds no images", "Name a folder with a folder for each class, or a list", "source_empty"
        )
    if len(classes) < 2:
        raise _input_error(
            source, f"has one class only, {classes[0]!r}", "Create a folder for each class", "single_class"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    return [Image(file, numbers[name]) for file, name in named], tuple(classes)


def _class_of(file: SourceFile) -> str:
    """Return the name of the top folder in the source."""
    parts = PurePosixPath(file.name).parts
    if len(parts) < 2:
        raise InputError(
            [
                file.problem(
                    "is in no class's folder", "Move it to a class's folder, or use a list", "image_without_class"
                )
            ]
        )
    return parts[0]


def _sort_key(name: str) -> tuple[int, str]:
    """Return a key that sorts numbers by value, before other names."""
    return (int(name), "") if name.isascii() and name.isdigit() else (1 << 62, name)


def _read_list(source: str) -> list[tuple[SourceFile, str]]:
    """Return the files of a list and their classes. Names are relative to the list; all files must exist."""
    folder = source.rpartition("/")[0] or ("" if "/" not in source else "/")
    files = {file.name: file for file in list_files([folder or "."])}
    named, problems = [], []
    for number, row in _read_rows(list_files([source])[0]):
        name, label = row.get(_NAME), row.get(_LABEL)
        if not name or label is None or label == "":
            reason = f"line {number} has no {_LABEL if name else _NAME}"
            fix = f"Set {_NAME}, relative to the list, and {_LABEL} for each image"
            raise _input_error(source, reason, fix, "label_line_incomplete")
        file = files.get(str(PurePosixPath(str(name))))
        if file is None:
            problems.append(
                _problem(source, f"line {number}: there is no file {name}", "Correct the list", "image_missing")
            )
        else:
            named.append((file, str(label)))
    if problems:
        raise InputError(problems[:10])
    return named


def _read_rows(file: SourceFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a list, with their line numbers."""
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
                        raise _input_error(
                            file.uri, f"line {number} is no object", "Correct the list", "label_line_not_an_object"
                        )
                    yield number, row
        except json.JSONDecodeError as error:
            raise _input_error(
                file.uri, f"line {number} is no JSON: {error}", "Correct the list", "invalid_json"
            ) from None
        except UnicodeDecodeError as error:
            raise _input_error(file.uri, f"is no UTF-8: {error}", "Convert the list", "invalid_utf8") from None


def _problem(source: str, reason: str, fix: str, code: str) -> Problem:
    return Problem("SOURCE", source, reason, fix, code)


def _input_error(source: str, reason: str, fix: str, code: str) -> InputError:
    return InputError([_problem(source, reason, fix, code)])
