"""First program of a node, at every boot: fetch manifest and bundle from S3, check, hand over to the bundle.

Travels inside user-data (16 KiB at most), on a bare image: standard library only, no AWS CLI, no boto3. It reads the
bundle's URI and SHA-256 from the manifest and ignores every other key: the manifest may change, this need not.
Speaks IMDSv2 and signs with Signature Version 4 (AWS General Reference, "Create a signed AWS API request").
"""

import argparse
import datetime
import hashlib
import hmac
import json
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

ROOT = Path(os.environ.get("TRAINYARD_ROOT", "/"))  # a node that is a folder has its own root
BASE = ROOT / "opt/trainyard"
CURRENT = BASE / "current"  # what services run from
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
# The head boots while Pulumi still makes what the manifest depends on: FSx alone takes some ten minutes.
DEADLINE_SECONDS = 40 * 60
REQUEST_SECONDS = 20
T = TypeVar("T")


class Fatal(Exception):
    """What no retry mends."""


def say(text: str) -> None:
    print(f"trainyard-bootstrap: {text}", file=sys.stderr, flush=True)


def request(url: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None) -> bytes:
    call = urllib.request.Request(url, body, method=method, headers=headers or {})  # noqa: S310
    with urllib.request.urlopen(call, timeout=REQUEST_SECONDS) as answer:  # noqa: S310
        content: bytes = answer.read()
        return content


def metadata(path: str) -> str:
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = request(f"{METADATA}/latest/api/token", "PUT", ttl).decode()
    return request(f"{METADATA}/latest/{path}", headers={"X-aws-ec2-metadata-token": token}).decode()


def credentials() -> dict[str, str]:
    role = metadata("meta-data/iam/security-credentials/").split()[0]
    found: dict[str, str] = json.loads(metadata(f"meta-data/iam/security-credentials/{role}"))
    return found


def signed_headers(
    method: str, url: str, region: str, creds: dict[str, str], now: datetime.datetime, body: bytes = b""
) -> dict[str, str]:
    """Headers of a request for `url`, already percent-encoded, its query in order, signed for S3 in `region`."""
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    where, digest = urllib.parse.urlsplit(url), hashlib.sha256(body).hexdigest()
    headers = {
        "host": where.netloc,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
        "x-amz-security-token": creds["Token"],
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{where.path}\n{where.query}\n{lines}\n{names}\n{digest}"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = ("AWS4" + creds["SecretAccessKey"]).encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"{creds['AccessKeyId']}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return headers


def signed(method: str, uri: str, region: str, body: bytes = b"", query: str = "") -> tuple[str, dict[str, str]]:
    """URL and headers of one call of S3 for an object, or with a query for a bucket."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        base = f"{endpoint.rstrip('/')}/{bucket}"
    else:
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        base = f"https://{bucket}.s3.{region}.{suffix}"
    url = f"{base}/{urllib.parse.quote(key)}" + (f"?{query}" if query else "")
    now = datetime.datetime.now(datetime.timezone.utc)  # noqa: UP017 (plain for any Python 3)
    return url, signed_headers(method, url, region, credentials(), now, body)


def s3(method: str, uri: str, region: str, body: bytes | None = None, query: str = "") -> bytes:
    url, headers = signed(method, uri, region, body or b"", query)
    if body is not None:
        headers["content-type"] = "application/json"  # urllib would say that it is a form
    return request(url, method, headers, body)


def s3_get(uri: str, region: str) -> bytes:
    return s3("GET", uri, region)


def patiently(what: str, call: Callable[[], T]) -> T:
    """Try `call` until it answers or the deadline is over: early in a boot anything may still be away."""
    end, pause, told = time.monotonic() + DEADLINE_SECONDS, 1.0, ""
    while True:
        try:
            return call()
        except (OSError, ValueError, IndexError, KeyError) as error:
            reason = f"{type(error).__name__}: {error}"
            if time.monotonic() > end:
                raise Fatal(f"{what}: gave up after {DEADLINE_SECONDS} s, last: {reason}") from error
            if reason != told:
                say(f"waiting for {what}: {reason}")
                told = reason
            time.sleep(pause)
            pause = min(pause * 1.5, 10.0)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack beside `folder` and rename: a node cut in the middle never finds half a bundle."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent))
    with tarfile.open(archive) as tar:
        # The SHA-256 was checked: the archive is ours. The filter is there from Python 3.11.4 on.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(work, filter="data")
        else:
            tar.extractall(work)  # noqa: S202
    work.chmod(0o755)
    if folder.exists():
        shutil.rmtree(folder)
    work.rename(folder)


def bundle_of(manifest: bytes) -> dict[str, str]:
    """All that the bootstrap reads of a manifest."""
    try:
        found = json.loads(manifest)["bundle"]
        return {"uri": found["uri"], "sha256": found["sha256"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Fatal(f"the manifest names no bundle: {type(error).__name__}: {error}") from error


def fetch_bundle(bundle: dict[str, str], region: str) -> Path:
    folder = BASE / "bundle" / bundle["sha256"]
    if not folder.exists():
        data = patiently("the bundle", lambda: s3_get(bundle["uri"], region))
        found = hashlib.sha256(data).hexdigest()
        if found != bundle["sha256"]:
            raise Fatal(f"{bundle['uri']} has SHA-256 {found}, the manifest says {bundle['sha256']}")
        archive = BASE / "bundle.tar.gz"
        archive.write_bytes(data)
        unpack(archive, folder)
        archive.unlink()
    return folder


def switch(link: Path, folder: Path) -> None:
    """Have a link lead to `folder`. What runs keeps what it has loaded."""
    made = link.with_name("next")
    made.unlink(missing_ok=True)
    made.symlink_to(folder)
    made.replace(link)


def report(reason: str) -> None:
    """Tell the launch why this node can't be configured: before the play, nobody else does. Best effort: the console
    has it too. The shape is trainyard.models.events.PlayEvent, the place trainyard.models.layout's."""
    say(reason)
    try:
        node = json.loads((BASE / "node.json").read_text())
        manifest = json.loads((BASE / "fetched.json").read_text())
        region, who = node["region"], {name: node[name] for name in ("instance", "role", "boot")}
        event = {"kind": "play", "status": "failed", "message": reason[:4000], "time": time.time(), **who}
        stream = f"s3://{manifest['staging_bucket']}/{'bake' if node['role'] == 'builder' else 'head'}/events/"
        if node["role"] == "worker":
            run = json.loads(s3_get(f"s3://{manifest['staging_bucket']}/run.json", region))["run"]
            stream = f"s3://{manifest['data_bucket']}/runs/{run}/events/"
        key = f"{stream}{node['instance']}/{node['boot']}/boot-{int(time.time()):08d}.jsonl"
        s3("PUT", key, region, json.dumps(event).encode() + b"\n")
    except (OSError, ValueError, KeyError) as error:
        say(f"that can't be told to the launch: {type(error).__name__}: {error}")


def boot_number() -> str:
    """`0001` for the first boot of this machine, counted on its disk."""
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    file = BASE / "boot.json"
    seen: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"boot": 0, "kernel": ""}
    if seen["kernel"] != kernel:
        seen = {"boot": seen["boot"] + 1, "kernel": kernel}
        file.write_text(json.dumps(seen))
    return f"{seen['boot']:04d}"


def switch_off_at(until: float) -> None:
    """Kept in memory, by systemd: no boot of another machine from this disk knows of it. A reboot comes here again."""
    later = ["systemd-run", f"--on-active={until - time.time():.0f}", "systemctl", "poweroff"]
    if str(ROOT) == "/" and (time.time() >= until or subprocess.call(later)):
        subprocess.call(["systemctl", "poweroff"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--role", choices=("head", "worker", "builder"), required=True)
    parser.add_argument("--group", help="name in the manifest of the group that a worker is in")
    parser.add_argument("--manifest", required=True, help="S3 URI of manifest.json")
    parser.add_argument("--region", required=True)
    parser.add_argument("--until", type=float, help="Unix time at which this machine is switched off, whoever dies")
    options = parser.parse_args()
    if options.until:
        switch_off_at(options.until)
    BASE.mkdir(parents=True, exist_ok=True)
    node = {
        "role": options.role,
        "group": options.group,
        "instance": patiently("the metadata service", lambda: metadata("meta-data/instance-id")),
        "address": patiently("the metadata service", lambda: metadata("meta-data/local-ipv4")),
        "boot": boot_number(),
        "region": options.region,
        "manifest_uri": options.manifest,
    }
    (BASE / "node.json").write_text(json.dumps(node))
    text = patiently("the manifest", lambda: s3_get(options.manifest, options.region))
    (BASE / "fetched.json").write_bytes(text)
    bundle = bundle_of(text)
    folder = fetch_bundle(bundle, options.region)
    (BASE / "manifest.json").write_bytes(text)
    node["bundle"] = str(folder)
    (BASE / "node.json").write_text(json.dumps(node))
    switch(CURRENT, folder)
    say(f"{options.role} {node['instance']}, boot {node['boot']}, bundle {bundle['sha256'][:12]}")
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, str(folder / "trainyard/node/environments/node.py")])  # noqa: S606


if __name__ == "__main__":
    try:
        main()
    except (Fatal, OSError) as error:  # a full disk, too
        report(str(error))
        sys.exit(1)
