"""Apply a changed manifest to a running node: `python -m trainyard.node.refresh`, started by a timer.

Running processes are not touched. The new bundle is downloaded and verified first, then it replaces the current one and
the node playbook runs again. If the bundle is not available or does not match the manifest, the failure is reported and
the node does not change.
"""

import logging
import subprocess
import sys
import time

from pydantic import ValidationError

from trainyard.aws.s3 import Bucket
from trainyard.log import configure_logging
from trainyard.models.events import PlaybookEvent
from trainyard.models.layout import split_s3_uri
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node import bootstrap
from trainyard.node.events import open_event_writer
from trainyard.node.identity import BASE, Node, read_manifest, read_node

UNIT = "trainyard-node.service"
REJECTED = BASE / "rejected"  # the last manifest that was reported as unusable: it is reported once
LOG = logging.getLogger("refresh")


def apply_manifest(text: bytes, node: Node) -> bool:
    """Install a changed manifest and its bundle; whether the playbook must run again.

    Raises BootstrapError or ValidationError if the manifest or its bundle is not usable.
    """
    # A newer manifest may have keys that this code does not know: the code of the new bundle validates it then.
    before, bundle = read_manifest(), bootstrap.bundle_of(text)
    try:
        changed = before.node_digest() != Manifest.model_validate_json(text).node_digest()
    except ValidationError:
        if bundle["sha256"] == before.bundle.sha256:
            raise
        changed = True
    folder = bootstrap.fetch_bundle(bundle, node.region, node.account)
    (BASE / "manifest.json").write_bytes(text)
    if changed:
        (BASE / "node.json").write_text(node.model_copy(update={"bundle": str(folder)}).model_dump_json())
        bootstrap.replace_link(bootstrap.CURRENT, folder)
    return changed


def report_failure(node: Node, manifest: Manifest, reason: str) -> None:
    """Report a manifest that is not usable as an event."""
    event = {**node.event_fields(time.time()), "status": "failed", "message": reason}
    with open_event_writer(node, manifest, "refresh") as writer:
        writer.write_event(PlaybookEvent.model_validate(event))


def pull_container_image(run: RunRecord) -> None:
    """Run the playbook again for the container image of a run of the manifest on this node, unless it runs now."""
    is_completed = subprocess.run(["systemctl", "is-active", "--quiet", UNIT], check=False).returncode == 0
    if is_completed and read_manifest().node_digest() == run.node_digest:
        LOG.info("the playbook runs again for the container image %s", run.job.container)
        subprocess.run(["systemctl", "restart", "--no-block", UNIT], check=True)


def refresh(node: Node, run: RunRecord | None = None) -> None:
    """Compare the manifest in S3 with the local one and apply a change.

    `run`: run for which the playbook has not configured this node yet, if any.
    """
    bucket, key = split_s3_uri(node.manifest_uri)
    text = Bucket(bucket, node.region, node.account).read(key)
    if text == (BASE / "manifest.json").read_bytes():
        if run is not None:
            pull_container_image(run)
        return
    if REJECTED.exists() and REJECTED.read_bytes() == text:
        return
    manifest = read_manifest()
    try:
        changed = apply_manifest(text, node)
    except (bootstrap.BootstrapError, OSError, ValueError) as error:
        reason = f"the changed manifest is not applied, and this node does not change: {error}"
        LOG.error(reason)
        report_failure(node, manifest, reason)
        REJECTED.write_bytes(text)
        return
    if changed:
        LOG.info("the manifest has changed: the playbook runs again")
        subprocess.run(["systemctl", "restart", "--no-block", UNIT], check=True)


def main() -> int:
    """Refresh the manifest of this node; the exit code."""
    node = read_node()
    configure_logging(node=node.instance)
    refresh(node)
    return 0


if __name__ == "__main__":
    sys.exit(main())
