"""Resolve the requirements of a custom job with uv, as if on a node."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainyard.errors import Problem
from trainyard.job_source.environment import NodeEnvironment, tool_environment
from trainyard.job_source.node_packages import normalize

REQUIREMENTS = "requirements.txt"
UV = (sys.executable, "-m", "uv", "--no-progress", "--color", "never")
RESOLVE_SECONDS = 300.0
ON_NODES = "job.resolve_requirements: nodes"
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_URL = re.compile(r"://([^/@\s]+)@([^\s@#;]+)")
_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)", re.MULTILINE)
_INDEX_OPTION = re.compile(r"^\s*(-i|--index-url|--extra-index-url|-f|--find-links)(?:\s*=\s*|\s+)(\S+)", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
# A line that reads no file of the source: a package by its name (not a wheel by its path) or URL, or an index.
_PLAIN = re.compile(
    r"(?!\S*\.(whl|zip|tar|tgz|gz|bz2|xz)\b)[A-Z0-9][\w.-]*\s*(\[[^\]]*\]\s*)?($|[<>=!~;(]|--hash|@\s*[a-z+]*https?://)"
    r"|(-i|--index-url|--extra-index-url)[\s=]+https?://",
    re.IGNORECASE,
)
_ADDED = re.compile(r"^ [+~] (\S+?)(?:==(\S+))?(?: \(from (\S+)\)| @ (\S+))?$", re.MULTILINE)
_UNREACHABLE = ("error sending request", "Failed to fetch", "Request failed after", "Failed to read `--find-links`")
_ERROR_CHARACTERS = 700


class ToolError(Exception):
    """uv or pip failed. `text`: its message, without credentials. `is_unreachable`: an index could not be read."""

    def __init__(self, output: str) -> None:
        text = hide_credentials(output)
        start = max(text.find("error: "), 0)
        message = " ".join(text[start:].removeprefix("error: ").split()).replace(" cause: ", ": ")
        self.text = message[:_ERROR_CHARACTERS]
        self.is_unreachable = any(mark in output for mark in _UNREACHABLE)
        super().__init__(self.text)


def hide_credentials(text: str) -> str:
    """Return the text without the credentials of its URLs."""
    return _CREDENTIALS.sub("****", text)


def run_tool(command: Sequence[str], folder: Path, timeout_seconds: float = RESOLVE_SECONDS) -> tuple[str, str]:
    """Run uv or pip in a folder; its stdout and stderr. Raises ToolError if it fails or exceeds the time."""
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            env=tool_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"`{command[2]}` did not end within {timeout_seconds:g} seconds") from None
    if result.returncode:
        raise ToolError(result.stderr or result.stdout)
    return result.stdout, result.stderr


def resolve(folder: Path, environment: NodeEnvironment, index: Sequence[str]) -> list[str] | None:
    """Return what is missing in the environment: `name==version`, or `name @ URL` with the credentials of the URL.

    `folder`: the unpacked source of the job. `index`: options that select the package index. An environment that
    satisfies the requirements is found without an index, and the result is empty. None: no requirements.txt. Raises
    ToolError.
    """
    if not (folder / REQUIREMENTS).is_file():
        return None
    with environment.uv_target() as target:
        command = [*UV, "pip", "install", "--dry-run", *target, "-r", REQUIREMENTS]
        try:
            _, report = run_tool([*command, "--offline", "--no-index"], folder)
        except ToolError:
            report = ""
        if "Would make no changes" in report:
            return []
        _, report = run_tool([*command, *index], folder)
    credentials = _read_credentials(folder / REQUIREMENTS)
    return [
        f"{name} @ {restore_credentials(source or url, credentials)}" if source or url else f"{name}=={version}"
        for name, version, source, url in _ADDED.findall(report)
    ]


def pin_name(pin: str) -> str:
    """Return the normalized name of the package of a requirement that `resolve` returned."""
    return normalize(pin.split("==")[0].split(" @")[0])


def reads_other_files(requirements: str) -> bool:
    """Return whether a requirements file reads other files of the source, such as a package in a folder."""
    text = re.sub(r"(?m)(^|\s)#.*$", "", requirements)
    lines = [line.strip() for line in re.sub(r"\\\r?\n", " ", text).splitlines()]
    return not all(_PLAIN.match(line) for line in lines if line)


def restore_credentials(url: str, credentials: Mapping[str, str]) -> str:
    """Return a URL of uv's report with the credentials that the report masks (see _read_credentials)."""
    masked = re.search(r"(?<=://)[^/@\s]*\*{4}@", url)
    if masked is None:
        return url
    location = url[masked.end() :]
    known = max((each for each in credentials if location.startswith(each)), key=len, default=None)
    return url if known is None else f"{url[: masked.start()]}{credentials[known]}@{location}"


def read_index_options(folder: Path) -> list[str]:
    """Return the options of requirements.txt, and of files that it includes, that select indexes and find-links."""
    options = []
    for file, text in _read_requirements(folder / REQUIREMENTS):
        for option, value in _INDEX_OPTION.findall(text):
            is_path = option in ("-f", "--find-links") and "://" not in value
            options += [option, (file.parent / value).resolve().as_uri() if is_path else value]
    return options


def _read_credentials(file: Path) -> dict[str, str]:
    """Return the credentials in a requirements file and the files that it includes: host and path -> credentials."""
    texts = (text for _, text in _read_requirements(file))
    return {location: userinfo for text in texts for userinfo, location in _URL.findall(text)}


def _read_requirements(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield a requirements file and the files that it includes, each with its text."""
    pending, visited = [file], set()
    while pending:
        file = pending.pop().resolve()
        if file in visited or not file.is_file():
            continue
        visited.add(file)
        # uv and pip replace ${NAME} by the environment variable.
        text = _VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), file.read_text(errors="replace"))
        yield file, text
        pending += [file.parent / name for name in _INCLUDED.findall(text)]


def describe_failure(folder: Path, error: ToolError, index: str | None) -> Problem:
    """Return the problem of requirements that cannot be resolved, with the lines that the error names."""
    lines = _lines_of(folder / REQUIREMENTS, error.text)
    key = REQUIREMENTS + (f":{','.join(str(number) for number, _ in lines)}" if lines else "")
    value = hide_credentials(", ".join(text for _, text in lines)) or None
    source = hide_credentials(index) if index else "the default index"
    if error.is_unreachable:
        fix = f"Repair the access to {source}, or let nodes resolve them ({ON_NODES})"
        return Problem(key, value, f"the package index cannot be read: {error.text}", fix, "package_index_unreachable")
    fix = (
        f"Correct it, set node.package_index to an index that has it (now {source}), or use an image with the packages "
        "(job.container)"
    )
    return Problem(key, value, error.text.rstrip("."), fix, "requirements_not_resolvable")


def _lines_of(file: Path, message: str) -> list[tuple[int, str]]:
    """Return number and text of the requirement lines whose packages the message names."""
    names = {normalize(name) for name in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z0-9]", message)}
    lines = []
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        text = line.partition(" #")[0].strip()
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)
        is_quoted = bool(text) and not text.startswith("#") and text in message
        if is_quoted or (name and normalize(name[0]) in names):
            lines.append((number, text))
    return lines
