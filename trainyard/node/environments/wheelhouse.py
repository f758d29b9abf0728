"""Wheels mirrored to S3: what `node.package_index: s3://bucket/prefix/` names comes to the node's own disk.

Standard library only: the play's own environment may be made from it. It is filled by `pip download` for the bundle's
lists (docs/deploy.md); a wheel that is there already, of the same size, is not fetched again.
"""

import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trainyard.node.bootstrap import BASE, REQUEST_SECONDS, Fatal, patiently, s3, signed

PACKAGES = (".whl", ".tar.gz", ".zip")
_SPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_BLOCK = 1 << 20


def listed(uri: str, region: str) -> Iterator[tuple[str, int]]:
    """(key, size) of every package under the prefix."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    token = ""
    while True:
        asked = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
        query = urllib.parse.urlencode(sorted(asked.items()), quote_via=urllib.parse.quote, safe="")
        answer = patiently("the wheels' list", partial(s3, "GET", f"s3://{bucket}/", region, query=query))
        page = ElementTree.fromstring(answer)  # noqa: S314 (S3's own answer)
        for item in page.iter(f"{_SPACE}Contents"):
            key = item.findtext(f"{_SPACE}Key") or ""
            if key.endswith(PACKAGES):
                yield key, int(item.findtext(f"{_SPACE}Size") or 0)
        token = page.findtext(f"{_SPACE}NextContinuationToken") or ""
        if not token:
            return


def download(uri: str, region: str, file: Path) -> None:
    """One object, a block at a time: torch's wheels have gigabytes."""
    url, headers = signed("GET", uri, region)
    call = urllib.request.Request(url, headers=headers)  # noqa: S310
    work = file.with_name(f"{file.name}.partial")
    with urllib.request.urlopen(call, timeout=REQUEST_SECONDS) as answer, work.open("wb") as out:  # noqa: S310
        while block := answer.read(_BLOCK):
            out.write(block)
    work.replace(file)


def fetch(uri: str, region: str) -> Path:
    """The folder with all packages of a wheelhouse in S3. Raises Fatal where there are none."""
    folder, bucket = BASE / "wheels", uri.removeprefix("s3://").partition("/")[0]
    folder.mkdir(parents=True, exist_ok=True)
    found = list(listed(uri, region))
    if not found:
        raise Fatal(f"{uri} holds no packages: fill it, or name another node.package_index")
    for key, size in found:
        file = folder / key.rsplit("/", 1)[-1]
        if not file.exists() or file.stat().st_size != size:
            where = f"s3://{bucket}/{key}"
            patiently(where, partial(download, where, region, file))
    return folder
