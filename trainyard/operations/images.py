"""The images that are baked for a stack: what one holds, those that are there, and making one of a builder."""

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import tags
from trainyard.aws.s3 import client
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.operations.errors import LaunchError
from trainyard.operations.progress import Display

Tags = dict[str, str]
POLL_SECONDS = 5.0
_LONGEST_NAME = 128


@dataclass(frozen=True)
class Content:
    """All that an image of the workers holds: another of these is another image.

    `source`: the image below it. `complete`: whether the drivers of the group's hardware are in it.
    """

    bundle: str
    sha256: str
    source: str
    complete: bool

    def tags(self, own: Tags, stack: str) -> Tags:
        """Of image and snapshot; `own` are those of the stack's other resources."""
        return {
            **own,
            "Name": self.name(stack),
            tags.ROLE: tags.IMAGE,
            tags.CONTENT: self.sha256,
            tags.SOURCE: self.source,
        }

    def name(self, stack: str) -> str:
        end = f"-{self.bundle[:12]}-{self.sha256[:8]}"
        return f"trainyard-{stack}"[: _LONGEST_NAME - len(end)] + end


def content_of(manifest: Manifest, group: WorkerGroup, source: str, complete: bool) -> Content:
    told = {
        "bundle": manifest.bundle.sha256,
        "node": manifest.node.model_dump(mode="json"),
        "fsx": manifest.fsx is not None,
        "container": manifest.job.container,
        "source": source,
        "hardware": [group.gpus, group.efa_interfaces, group.hardware.model_dump(mode="json")] if complete else None,
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return Content(manifest.bundle.sha256, digest, source, complete)


class Images:
    """Images of the account in the stack's region."""

    def __init__(self, stack: str, region: str) -> None:
        self._stack, self._ec2 = stack, client("ec2", region)

    def source_of(self, image: str) -> str:
        """The image below it, where it is one that was baked: images don't pile up. Else the image itself.

        Raises LaunchError where that is gone.
        """
        found = self._described(image)
        if found is None:
            raise LaunchError(
                f"the image {image} of the workers is gone: name another in the stack's file (image), then pulumi up"
            )
        below = _tags(found).get(tags.SOURCE)
        if below is None:
            return image
        if self._described(below) is None:
            raise LaunchError(
                f"{below}, which the workers' image {image} was baked from, is gone: name a newer one in the stack's "
                "file (image: ubuntu-24.04, debian-12, deep-learning), then pulumi up, then bake"
            )
        return below

    def find(self, content: Content) -> str | None:
        """One of this very content, ready or being made; the newest where there are several."""
        filters = [
            {"Name": f"tag:{tags.CONTENT}", "Values": [content.sha256]},
            {"Name": f"tag:{tags.STACK}", "Values": [self._stack]},
            {"Name": "state", "Values": ["available", "pending"]},
        ]
        found = self._ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
        newest = max(found, key=lambda image: (image["State"] == "available", image["CreationDate"]), default=None)
        return None if newest is None else str(newest["ImageId"])

    def make(self, instance: str, content: Content, own: Tags) -> str:
        """Begin an image of an instance that is stopped."""
        named = [{"Key": key, "Value": value} for key, value in content.tags(own, self._stack).items()]
        made: str = self._ec2.create_image(
            InstanceId=instance,
            Name=content.name(self._stack),
            Description=f"Trainyard stack {self._stack}, bundle {content.bundle[:12]}, on {content.source}",
            TagSpecifications=[{"ResourceType": kind, "Tags": named} for kind in ("image", "snapshot")],
        )["ImageId"]
        return made

    def wait(self, image: str, until: float, show: Display) -> None:
        """Raises LaunchError when it fails, goes, or is not ready at `until`, Unix time."""
        while True:
            found = self._described(image)
            state = "gone" if found is None else str(found["State"])
            if state == "available":
                return
            if found is not None and state != "pending":
                reason = found.get("StateReason", {}).get("Message", "no reason given")
                raise LaunchError(f"the image {image} is {state}: {reason}")
            if time.time() > until:
                raise LaunchError(f"the image {image} was still {state} when the time was over (--minutes)")
            show.detail("image", f"{image} {state}")
            time.sleep(POLL_SECONDS)

    def remove(self, image: str) -> str:
        """Take back one that is not wanted, with its snapshots; empty, or why it stays."""
        try:
            self._ec2.deregister_image(ImageId=image, DeleteAssociatedSnapshots=True)
        except (BotoCoreError, ClientError) as error:
            return f"the image {image} stays, as it could not be taken back: {error}"
        return ""

    def _described(self, image: str) -> dict[str, Any] | None:
        """A new one may not be known everywhere yet: then it is as good as gone, and is asked for again."""
        try:
            found = self._ec2.describe_images(ImageIds=[image])["Images"]
        except ClientError as error:
            if error.response["Error"]["Code"] in {"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"}:
                return None
            raise
        return found[0] if found else None


def _tags(described: dict[str, Any]) -> Tags:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
