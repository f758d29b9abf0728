"""The files that a dataset is made from: in folders or in S3, listed in one order everywhere, read from any place."""

import fnmatch
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from trainer.storage import region
from trainyard.base import InputError, Problem

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
_BUFFER = 4 << 20  # of a file that is read from front to back; in S3 each fill is a request


@dataclass(frozen=True)
class SourceFile:
    """One file. `name` is relative to what the user named, so that the data is the same wherever it lies."""

    uri: str
    name: str
    size: int
    modified: int  # Unix time, nanoseconds

    def problem(self, why: str, fix: str) -> Problem:
        return Problem(key="SOURCE", value=self.uri, why=why, fix=fix)

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix.lower()


def list_files(sources: Sequence[str], pattern: str = "*", exclude: Sequence[str] = ()) -> list[SourceFile]:
    """The files that SOURCES name, folders and prefixes with all under them, hidden ones left out.

    `pattern` is a shell's pattern for the names of files in folders, `exclude` are such for files and folders that are
    left out. Raises InputError with all that can't be found.
    """
    found: dict[str, SourceFile] = {}
    problems: list[Problem] = []
    for source in sources:
        try:
            files = list(_under(source, pattern, exclude))
        except OSError as error:
            problems.append(_source(source, f"can't be listed: {error}", "See that it can be read"))
            continue
        if not files:
            problems.append(_source(source, f"no file in it has a name like {pattern}", "Name one that has"))
        found |= {file.uri: file for file in files}
        if missing := [file for file in files if file.size < 0]:
            problems.append(_source(source, "there is no such file or folder", "Name one that is there"))
            del found[missing[0].uri]
    if problems:
        raise InputError(problems)
    return sorted(found.values(), key=lambda file: (file.name, file.uri))


def require_apart(sources: Sequence[str], target: str) -> None:
    """Raises InputError where the target lies in a source: its shards would be read as one of its files."""
    problems = []
    for source in sources:
        if source.startswith("s3://") or target.startswith("s3://"):
            inside = f"{target.rstrip('/')}/".startswith(f"{source.rstrip('/')}/")
        else:
            inside = Path(target).resolve().is_relative_to(Path(source).resolve())
        if inside:
            why = f"lies in the source {source}, whose files its shards would be"
            problems.append(Problem(key="--target", value=target, why=why, fix="Name a place beside it"))
    if problems:
        raise InputError(problems)


def open_file(file: SourceFile) -> Any:
    """A binary file object with buffer, of which any part can be read. Raises OSError where it is gone."""
    system, path = _place(file.uri)
    return io.BufferedReader(system.open_input_file(path), _BUFFER)


def open_parquet(file: SourceFile) -> Any:
    """A pyarrow.parquet.ParquetFile. Raises InputError where it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    system, path = _place(file.uri)
    try:
        # Where the file lies in S3, the pages of a column come in one request each, not in one a page.
        return pq.ParquetFile(path, filesystem=system, pre_buffer=False, buffer_size=_BUFFER)
    except pa.ArrowInvalid as error:
        raise InputError([file.problem(f"is no parquet file: {error}", "Mend it, or leave it out")]) from None


def _source(source: str, why: str, fix: str) -> Problem:
    return Problem(key="SOURCE", value=source, why=why, fix=fix)


def _under(source: str, pattern: str, exclude: Sequence[str]) -> Iterator[SourceFile]:
    """What a source holds; a file of negative size where it is not there."""
    from pyarrow import fs

    system, path = _place(source)
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        yield SourceFile(source, source, -1, 0)
    elif info.type == fs.FileType.Directory:
        for one in system.get_file_info(fs.FileSelector(path, recursive=True)):
            name = one.path.removeprefix(path).lstrip("/")
            if one.type == fs.FileType.File and fnmatch.fnmatch(one.base_name, pattern) and not _out(name, exclude):
                yield _file(one, name, source)
    else:
        yield _file(info, info.base_name, source)


def _out(name: str, exclude: Sequence[str]) -> bool:
    """Hidden files, the marks that Spark leaves, and what the user names."""
    parts = name.split("/")
    return any(part.startswith(".") or fnmatch.fnmatch(part, out) for part in parts for out in ("_SUCCESS", *exclude))


def _file(info: Any, name: str, source: str) -> SourceFile:
    uri = f"s3://{info.path}" if "://" in source else info.path
    return SourceFile(uri, name, cast(int, info.size), info.mtime_ns or 0)


def _place(uri: str) -> tuple[Any, str]:
    from pyarrow import fs

    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    if not uri.startswith("s3://"):
        raise InputError([_source(uri, "is neither a path nor s3://bucket/prefix/", "Mend it")])
    if region() is None:
        raise InputError([_source(uri, "is in S3, and no region is known", "Set AWS_REGION")])
    return _s3(), uri.removeprefix("s3://").rstrip("/")


@cache
def _s3() -> Any:
    from pyarrow import fs

    endpoint = os.environ.get("AWS_ENDPOINT_URL")  # which it does not read itself
    return fs.S3FileSystem(region=region(), endpoint_override=endpoint, connect_timeout=10, request_timeout=60)
