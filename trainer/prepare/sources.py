"""Lists and opens the source files of a dataset, in folders or in S3. The order is the same on every machine."""

import fnmatch
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from trainyard.aws.region import configured_region
from trainyard.errors import InputError, Problem

Format = Literal["text", "jsonl", "parquet"]
FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_BUFFER_BYTES = 4 << 20  # for sequential reads; in S3 each fill of the buffer is a request


@dataclass(frozen=True)
class SourceFile:
    """One source file. `name` is relative to the user's SOURCE, so that the dataset does not depend on its location."""

    uri: str
    name: str
    size: int
    modified: int  # Unix time, nanoseconds

    def problem(self, reason: str, fix: str, code: str) -> Problem:
        """Return a problem of this file."""
        return Problem("SOURCE", self.uri, reason, fix, code)

    @property
    def suffix(self) -> str:
        """Suffix of the name in lower case, with the dot."""
        return Path(self.name).suffix.lower()


def list_files(sources: Sequence[str], pattern: str = "*", exclude: Sequence[str] = ()) -> list[SourceFile]:
    """List the files of `sources`. Folders and prefixes are listed recursively, without hidden files.

    `pattern` is a shell pattern for names of files in folders; `exclude` are shell patterns for files and folders to
    skip. Raises InputError with all sources that can't be listed.
    """
    files: dict[str, SourceFile] = {}
    problems: list[Problem] = []
    for source in sources:
        try:
            listed = list(_list_source(source, pattern, exclude))
        except OSError as error:
            problems.append(
                _source_problem(
                    source, f"can't be listed: {error}", "Check the permission to read it", "source_not_readable"
                )
            )
            continue
        if not listed:
            reason = f"no file in it has a name like {pattern}"
            problems.append(_source_problem(source, reason, "Name a source with such files", "no_file_matches_pattern"))
        files |= {file.uri: file for file in listed}
        if missing := [file for file in listed if file.size < 0]:
            problems.append(
                _source_problem(source, "there is no such file or folder", "Name one that exists", "source_missing")
            )
            del files[missing[0].uri]
    if problems:
        raise InputError(problems)
    return sorted(files.values(), key=lambda file: (file.name, file.uri))


def require_target_outside_sources(sources: Sequence[str], target: str) -> None:
    """Raise InputError if the target is in a source: its shards would be read as source files."""
    problems = []
    for source in sources:
        if source.startswith("s3://") or target.startswith("s3://"):
            is_inside = f"{target.rstrip('/')}/".startswith(f"{source.rstrip('/')}/")
        else:
            is_inside = Path(target).resolve().is_relative_to(Path(source).resolve())
        if is_inside:
            reason = f"is in the source {source}, so that its shards would be source files"
            problems.append(Problem("--target", target, reason, "Name a location outside it", "target_inside_source"))
    if problems:
        raise InputError(problems)


def open_file(file: SourceFile) -> Any:
    """Open a file as a buffered binary file object with random access. Raises OSError if it no longer exists."""
    file_system, path = _locate(file.uri)
    return io.BufferedReader(file_system.open_input_file(path), _BUFFER_BYTES)


def open_parquet(file: SourceFile) -> Any:
    """Open a file as a pyarrow.parquet.ParquetFile. Raises InputError if it is no parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file_system, path = _locate(file.uri)
    try:
        # From S3, the pages of a column are read in one request each instead of one request per page.
        return pq.ParquetFile(path, filesystem=file_system, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    except pa.ArrowInvalid as error:
        raise InputError(
            [file.problem(f"is no parquet file: {error}", "Repair or exclude it", "invalid_parquet")]
        ) from None


def _source_problem(source: str, reason: str, fix: str, code: str) -> Problem:
    return Problem("SOURCE", source, reason, fix, code)


def _list_source(source: str, pattern: str, exclude: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the files of a source; a file of negative size if the source does not exist."""
    from pyarrow import fs

    file_system, path = _locate(source)
    info = file_system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        yield SourceFile(source, source, -1, 0)
    elif info.type == fs.FileType.Directory:
        for entry in file_system.get_file_info(fs.FileSelector(path, recursive=True)):
            name = entry.path.removeprefix(path).lstrip("/")
            is_match = entry.type == fs.FileType.File and fnmatch.fnmatch(entry.base_name, pattern)
            if is_match and not _is_excluded(name, exclude):
                yield _source_file(entry, name, source)
    else:
        yield _source_file(info, info.base_name, source)


def _is_excluded(name: str, exclude: Sequence[str]) -> bool:
    """Return whether a file is hidden, Spark's success marker, or excluded by the user."""
    parts = name.split("/")
    patterns = ("_SUCCESS", *exclude)
    return any(part.startswith(".") or fnmatch.fnmatch(part, pattern) for part in parts for pattern in patterns)


def _source_file(info: Any, name: str, source: str) -> SourceFile:
    uri = f"s3://{info.path}" if "://" in source else info.path
    return SourceFile(uri, name, cast(int, info.size), info.mtime_ns or 0)


def _locate(uri: str) -> tuple[Any, str]:
    """Return the pyarrow file system of a URI, and the path in it."""
    from pyarrow import fs

    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    if not uri.startswith("s3://"):
        raise InputError(
            [_source_problem(uri, "is neither a path nor s3://bucket/prefix/", "Correct it", "invalid_uri")]
        )
    if configured_region() is None:
        raise InputError(
            [_source_problem(uri, "is in S3, and no region is configured", "Set AWS_REGION", "region_missing")]
        )
    return _s3(), uri.removeprefix("s3://").rstrip("/")


@cache
def _s3() -> Any:
    from pyarrow import fs

    endpoint = os.environ.get("AWS_ENDPOINT_URL")  # pyarrow does not read this variable
    return fs.S3FileSystem(
        region=configured_region(), endpoint_override=endpoint, connect_timeout=10, request_timeout=60
    )
