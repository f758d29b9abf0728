"""First program of a node at every boot: fetch manifest and bundle from S3, verify them, start the bundle's code.

It is part of the user data (16 KiB at most) and runs on a bare image: standard library only, no AWS CLI, no boto3. It
reads only the bundle's URI and SHA-256 from the manifest, so that the other keys may change without a change here.
It uses IMDSv2 and Signature Version 4 (AWS General Reference, "Create a signed AWS API request").
"""

import argparse
import datetime
import hashlib
import hmac
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(os.environ.get("TRAINYARD_ROOT", "/"))  # a rehearsed node without a machine is a folder
BASE = ROOT / "opt/trainyard"
CURRENT = BASE / "current"  # link to the bundle from which services run
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
# The head boots while Pulumi still creates resources that the manifest names: FSx alone takes about ten minutes.
DEADLINE_SECONDS = 40 * 60
REQUEST_SECONDS = 20
LOG = logging.getLogger("bootstrap")
T = TypeVar("T")


class BootstrapError(Exception):
    """A failure that a retry does not fix."""


def request(url: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None) -> bytes:
    """Body of the response to an HTTP request. Raises OSError for an error status or no response."""
    call = urllib.request.Request(url, body, method=method, headers=headers or {})  # noqa: S310
    with urllib.request.urlopen(call, timeout=REQUEST_SECONDS) as response:  # noqa: S310
        content: bytes = response.read()
        return content


def metadata(path: str) -> str:
    """One page of the instance metadata service."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = request(f"{METADATA}/latest/api/token", "PUT", ttl).decode()
    return request(f"{METADATA}/latest/{path}", headers={"X-aws-ec2-metadata-token": token}).decode()


def credentials() -> dict[str, str]:
    """Temporary credentials of the instance's role."""
    role = metadata("meta-data/iam/security-credentials/").split()[0]
    page: dict[str, str] = json.loads(metadata(f"meta-data/iam/security-credentials/{role}"))
    return page


def signed_headers(
    method: str,
    url: str,
    region: str,
    creds: dict[str, str],
    now: datetime.datetime,
    body: bytes = b"",
    owner: str | None = None,
) -> dict[str, str]:
    """Headers that sign a request for S3 in `region`. `url` is percent-encoded and its query is sorted."""
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    parts, digest = urllib.parse.urlsplit(url), hashlib.sha256(body).hexdigest()
    headers = {
        "host": parts.netloc,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
        "x-amz-security-token": creds["Token"],
    }
    if owner:
        headers["x-amz-expected-bucket-owner"] = owner
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{parts.path}\n{parts.query}\n{lines}\n{names}\n{digest}"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = ("AWS4" + creds["SecretAccessKey"]).encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"{creds['AccessKeyId']}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return headers


def sign_request(
    method: str, uri: str, region: str, body: bytes = b"", query: str = "", owner: str | None = None
) -> tuple[str, dict[str, str]]:
    """URL and headers of one S3 request for an object, or with a query for a bucket.

    `owner`: account that must own the bucket, or S3 denies the request; None: any account.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        base = f"{endpoint.rstrip('/')}/{bucket}"
    else:
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        base = f"https://{bucket}.s3.{region}.{suffix}"
    url = f"{base}/{urllib.parse.quote(key)}" + (f"?{query}" if query else "")
    now = datetime.datetime.now(datetime.timezone.utc)  # noqa: UP017 (works in any Python 3)
    return url, signed_headers(method, url, region, credentials(), now, body, owner)


def s3(
    method: str, uri: str, region: str, body: bytes | None = None, query: str = "", owner: str | None = None
) -> bytes:
    """Body of the response to one signed S3 request."""
    url, headers = sign_request(method, uri, region, body or b"", query, owner)
    if body is not None:
        headers["content-type"] = "application/json"  # urllib's default is that of a form
    return request(url, method, headers, body)


def s3_get(uri: str, region: str, owner: str | None = None) -> bytes:
    """Content of an S3 object."""
    return s3("GET", uri, region, owner=owner)


def retry(resource: str, call: Callable[[], T]) -> T:
    """Result of `call`, repeated until it succeeds: early in a boot any service may be unavailable.

    Raises BootstrapError after DEADLINE_SECONDS. `resource` names in messages what `call` reads.
    """
    deadline, pause, logged = time.monotonic() + DEADLINE_SECONDS, 1.0, ""
    while True:
        try:
            return call()
        except (OSError, ValueError, IndexError, KeyError) as error:
            reason = f"{type(error).__name__}: {error}"
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                reason += " (use an image whose system certificates include the CA of the proxy that intercepts TLS)"
            if time.monotonic() > deadline:
                text = f"{resource} is not available after {DEADLINE_SECONDS} s, last error: {reason}"
                raise BootstrapError(text) from error
            if reason != logged:
                LOG.warning("waiting for %s: %s", resource, reason)
                logged = reason
            time.sleep(pause)
            pause = min(pause * 1.5, 10.0)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack next to `folder` and rename, so that an interrupted node has no partial bundle."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent))
    with tarfile.open(archive) as tar:
        # As trainyard.archives: tarfile has filters since Python 3.11.4.
        for member in tar.getmembers():
            if not member.isfile() or member.name.startswith("/") or ".." in member.name.split("/"):
                raise BootstrapError(f"the bundle contains {member.name!r}, which is no regular file below its folder")
        tar.extractall(work)  # noqa: S202 (checked above, and the SHA-256 is verified)
    work.chmod(0o755)
    if folder.exists():
        shutil.rmtree(folder)
    work.rename(folder)


def bundle_of(manifest: bytes) -> dict[str, str]:
    """URI and SHA-256 of the bundle that a manifest names. Raises BootstrapError if it names none."""
    try:
        bundle = json.loads(manifest)["bundle"]
        return {"uri": bundle["uri"], "sha256": bundle["sha256"]}
    except (ValueError, KeyError, TypeError) as error:
        raise BootstrapError(f"the manifest names no bundle: {type(error).__name__}: {error}") from error


def fetch_bundle(bundle: dict[str, str], region: str, owner: str | None) -> Path:
    """Folder of the unpacked bundle, downloaded unless it exists. Raises BootstrapError for a wrong SHA-256."""
    folder = BASE / "bundle" / bundle["sha256"]
    if not folder.exists():
        data = retry("the bundle", lambda: s3_get(bundle["uri"], region, owner))
        digest = hashlib.sha256(data).hexdigest()
        if digest != bundle["sha256"]:
            raise BootstrapError(f"{bundle['uri']} has SHA-256 {digest}, but the manifest has {bundle['sha256']}")
        archive = BASE / "bundle.tar"
        archive.write_bytes(data)
        unpack(archive, folder)
        archive.unlink()
    return folder


def replace_link(link: Path, folder: Path) -> None:
    """Point `link` to `folder` atomically. Running processes keep the files that they have loaded."""
    temporary = link.with_name("next")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder)
    temporary.replace(link)


def report_failure(reason: str) -> None:
    """Report to the launch why this node cannot be configured. Best effort: the reason is also on the console.

    The event is a trainyard.models.events.PlaybookEvent, its key follows trainyard.models.layout.
    """
    LOG.error(reason)
    try:
        node = json.loads((BASE / "node.json").read_text())
        manifest = json.loads((BASE / "fetched.json").read_text())
        source = {name: node[name] for name in ("instance", "role", "boot")}
        region, owner = node["region"], node.get("account")  # none: written by an earlier version
        event = {"kind": "playbook", "status": "failed", "message": reason[:4000], "time": time.time(), **source}
        stream = f"s3://{manifest['staging_bucket']}/{'bake' if node['role'] == 'builder' else 'head'}/events/"
        if node["role"] == "worker":
            run = json.loads(s3_get(f"s3://{manifest['staging_bucket']}/run.json", region, owner))["run"]
            owner = None  # the data bucket may be one of another account (storage.bucket)
            stream = f"s3://{manifest['data_bucket']}/runs/{run}/events/"
        key = f"{stream}{node['instance']}/{node['boot']}/boot-{int(time.time()):08d}.jsonl"
        s3("PUT", key, region, json.dumps(event).encode() + b"\n", owner=owner)
    except (OSError, ValueError, KeyError) as error:
        LOG.error("this failure cannot be reported to the launch: %s: %s", type(error).__name__, error)


def boot_number() -> str:
    """Number of this boot, counted on the disk: `0001` for the first."""
    boot_id = (ROOT / "proc/sys/kernel/random/boot_id").read_text().strip()
    file = BASE / "boot.json"
    last: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"boot": 0, "boot_id": ""}
    if last["boot_id"] != boot_id:
        last = {"boot": last["boot"] + 1, "boot_id": boot_id}
        file.write_text(json.dumps(last))
    return f"{last['boot']:04d}"


def schedule_poweroff(until: float) -> None:
    """Power this machine off at `until`, Unix time: by a timer of systemd in memory, so that images do not have it.

    Every boot of this machine schedules it again.
    """
    command = ["systemd-run", f"--on-active={until - time.time():.0f}", "systemctl", "poweroff"]
    if str(ROOT) == "/" and (time.time() >= until or subprocess.call(command)):
        subprocess.call(["systemctl", "poweroff"])


def main() -> None:
    """Prepare this node and replace this process by the next program of the bundle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--role", choices=("head", "worker", "builder"), required=True)
    parser.add_argument("--group", help="name of the worker group in the manifest")
    parser.add_argument("--manifest", required=True, help="S3 URI of manifest.json")
    parser.add_argument("--region", required=True)
    parser.add_argument("--account", required=True, help="account id of the stack, which owns the manifest's bucket")
    parser.add_argument("--until", type=float, help="Unix time at which this machine is powered off in any case")
    options = parser.parse_args()
    if options.until:
        schedule_poweroff(options.until)
    BASE.mkdir(parents=True, exist_ok=True)
    node = {
        "role": options.role,
        "group": options.group,
        "instance": retry("the metadata service", lambda: metadata("meta-data/instance-id")),
        "address": retry("the metadata service", lambda: metadata("meta-data/local-ipv4")),
        "boot": boot_number(),
        "region": options.region,
        "account": options.account,
        "manifest_uri": options.manifest,
    }
    (BASE / "node.json").write_text(json.dumps(node))
    text = retry("the manifest", lambda: s3_get(options.manifest, options.region, options.account))
    (BASE / "fetched.json").write_bytes(text)
    bundle = bundle_of(text)
    folder = fetch_bundle(bundle, options.region, options.account)
    (BASE / "manifest.json").write_bytes(text)
    node["bundle"] = str(folder)
    (BASE / "node.json").write_text(json.dumps(node))
    replace_link(CURRENT, folder)
    LOG.info("%s %s, boot %s, bundle %s", options.role, node["instance"], node["boot"], bundle["sha256"][:12])
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, str(folder / "trainyard/node/environments/node.py")])  # noqa: S606


if __name__ == "__main__":
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(  # the format of trainyard/log.py
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    try:
        main()
    except (BootstrapError, OSError) as error:  # OSError: also a full disk
        report_failure(str(error))
        sys.exit(1)
