"""Brings a changed manifest to a running node: `python -m trainyard.node.refresh`, by a timer.

What runs is left alone: the bundle is fetched and checked beside it, and only a whole one takes its place; then the
play is run again. A bundle that can't be had, or is not what the manifest says, is told and leaves the node as it is.
"""

import subprocess
import sys
import time

from pydantic import ValidationError

from trainyard.aws.s3 import Bucket
from trainyard.models.events import PlayEvent
from trainyard.models.layout import split_s3_uri
from trainyard.models.manifest import SIZES_AND_DEADLINES, Manifest
from trainyard.node import bootstrap
from trainyard.node.events import events_writer
from trainyard.node.identity import BASE, Node, manifest_at_boot, this_node

UNIT = "trainyard-node.service"
REFUSED = BASE / "refused"  # the manifest that was told last as unusable: once is enough


def concerns_nodes(before: Manifest, after: Manifest) -> bool:
    """Whether the play would do anything else: sizes, deadlines and jobs are the run's own."""
    without = {**SIZES_AND_DEADLINES, "job": True}
    return before.model_dump(exclude=without) != after.model_dump(exclude=without)


def take(text: bytes, node: Node) -> bool:
    """Put a changed manifest in force; whether the play must run again.

    Raises Fatal or ValidationError where it, or its bundle, can't be used.
    """
    # One of a newer tree may have keys that this code does not know: its own bundle is asked, not this one.
    before, bundle = manifest_at_boot(), bootstrap.bundle_of(text)
    try:
        changed = concerns_nodes(before, Manifest.model_validate_json(text))
    except ValidationError:
        if bundle["sha256"] == before.bundle.sha256:
            raise
        changed = True
    folder = bootstrap.fetch_bundle(bundle, node.region)
    (BASE / "manifest.json").write_bytes(text)
    if changed:
        (BASE / "node.json").write_text(node.model_copy(update={"bundle": str(folder)}).model_dump_json())
        bootstrap.switch(bootstrap.CURRENT, folder)
    return changed


def tell(node: Node, manifest: Manifest, reason: str) -> None:
    event = {**node.stamp(time.time()), "status": "failed", "message": reason}
    with events_writer(node, manifest, "refresh") as writer:
        writer.tell(PlayEvent.model_validate(event))


def main() -> int:
    node, file = this_node(), BASE / "manifest.json"
    bucket, key = split_s3_uri(node.manifest_uri)
    text = Bucket(bucket, node.region).read(key)
    if text == file.read_bytes() or (REFUSED.exists() and REFUSED.read_bytes() == text):
        return 0
    manifest = manifest_at_boot()
    try:
        again = take(text, node)
    except (bootstrap.Fatal, OSError, ValueError) as error:
        reason = f"the changed manifest is not taken, all stays as it is: {error}"
        print(f"refresh: {reason}", file=sys.stderr, flush=True)
        tell(node, manifest, reason)
        REFUSED.write_bytes(text)
        return 0
    if again:
        print("refresh: the manifest has changed: the play runs again", flush=True)
        subprocess.run(["systemctl", "restart", "--no-block", UNIT], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
