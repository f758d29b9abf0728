"""Download wheels from S3: `node.package_index: s3://bucket/prefix/`.

Standard library only, because the environment of the playbook may be created from them. `pip download` fills the prefix
for the bundle's requirements (docs/deploy.md). A local wheel of the same size is not downloaded again.
"""

import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trainyard.node.bootstrap import BASE, REQUEST_SECONDS, BootstrapError, retry, s3, sign_request
from trainyard.package_index import PACKAGES

_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_BLOCK = 1 << 20


def list_packages(uri: str, region: str) -> Iterator[tuple[str, int]]:
    """(key, size) of every package under the prefix."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    token = ""
    while True:
        parameters = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
        query = urllib.parse.urlencode(sorted(parameters.items()), quote_via=urllib.parse.quote, safe="")
        response = retry(f"the list of {uri}", partial(s3, "GET", f"s3://{bucket}/", region, query=query))
        page = ElementTree.fromstring(response)  # noqa: S314 (the response of S3)
        for item in page.iter(f"{_NAMESPACE}Contents"):
            key = item.findtext(f"{_NAMESPACE}Key") or ""
            if key.endswith(PACKAGES):
                yield key, int(item.findtext(f"{_NAMESPACE}Size") or 0)
        token = page.findtext(f"{_NAMESPACE}NextContinuationToken") or ""
        if not token:
            return


def download(uri: str, region: str, file: Path) -> None:
    """Download one object in blocks: wheels of torch have gigabytes."""
    url, headers = sign_request("GET", uri, region)
    call = urllib.request.Request(url, headers=headers)  # noqa: S310
    work = file.with_name(f"{file.name}.partial")
    with urllib.request.urlopen(call, timeout=REQUEST_SECONDS) as response, work.open("wb") as out:  # noqa: S310
        while block := response.read(_BLOCK):
            out.write(block)
    work.replace(file)


def fetch(uri: str, region: str) -> Path:
    """Folder with all packages of a wheelhouse in S3. Raises BootstrapError if it has none."""
    folder, bucket = BASE / "wheels", uri.removeprefix("s3://").partition("/")[0]
    folder.mkdir(parents=True, exist_ok=True)
    packages = list(list_packages(uri, region))
    if not packages:
        raise BootstrapError(f"{uri} contains no packages: upload them, or change node.package_index")
    for key, size in packages:
        file = folder / key.rsplit("/", 1)[-1]
        if not file.exists() or file.stat().st_size != size:
            source = f"s3://{bucket}/{key}"
            retry(source, partial(download, source, region, file))
    return folder
