"""The machine images (AMIs) that are baked for a stack: their content, and finding, creating and deleting them."""

import hashlib
import json
import time
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import tags
from trainyard.aws.ec2 import Tags, create_image, delete_image, describe_image, find_images, tags_of
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.progress import Display

POLL_SECONDS = 5.0
_MAX_NAME_LENGTH = 128


@dataclass(frozen=True)
class ImageContent:
    """The inputs of a worker image; different content makes a different image.

    `bundle`: SHA-256 of the bundle. `sha256`: of all inputs. `source`: id of the image that it is based on.
    `has_drivers`: whether the drivers of the group's hardware are installed in it.
    """

    bundle: str
    sha256: str
    source: str
    has_drivers: bool

    def tags(self, stack_tags: Tags) -> Tags:
        """Return the tags of image and snapshots; `stack_tags` are those of the stack's other resources."""
        return {
            **stack_tags,
            "Name": self.name(stack_tags[tags.STACK]),
            tags.ROLE: tags.IMAGE,
            tags.CONTENT: self.sha256,
            tags.SOURCE: self.source,
        }

    def name(self, stack: str) -> str:
        """Return the name of the image, unique in account and region, at most 128 characters.

        `stack`: its `stack_tag`.
        """
        suffix = f"-{self.bundle[:12]}-{self.sha256[:8]}"
        return stack.replace("/", "-")[: _MAX_NAME_LENGTH - len(suffix)] + suffix


def compute_content(manifest: Manifest, group: WorkerGroup, source: str, has_drivers: bool) -> ImageContent:
    """Return the content of an image for the group, based on the image `source`."""
    hardware = [group.gpus, group.efa_interfaces, group.hardware.model_dump(mode="json")] if has_drivers else None
    inputs = {
        "bundle": manifest.bundle.sha256,
        "node": manifest.node.model_dump(mode="json"),
        "fsx": manifest.fsx is not None,
        "container": manifest.job.container,
        "source": source,
        "hardware": hardware,
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return ImageContent(manifest.bundle.sha256, digest, source, has_drivers)


class StackImages:
    """The baked images of a stack, in its account and region."""

    def __init__(self, cluster: Cluster) -> None:
        self._stack, self._tag, self._region = cluster.stack, cluster.stack_tag, cluster.region

    def source_image(self, image: str) -> str:
        """Return the image that a baked image is based on, so that images are not based on each other; else the image.

        Raises LaunchError when the result does not exist.
        """
        description = describe_image(self._region, image)
        if description is None:
            raise LaunchError(
                f"the workers' image {image} does not exist: name another image in the stack's file (image), then run "
                f"trainyard up -s {self._stack}"
            )
        source = tags_of(description).get(tags.SOURCE)
        if source is None:
            return image
        if describe_image(self._region, source) is None:
            raise LaunchError(
                f"{source}, the source of the workers' image {image}, does not exist: name a newer image in the "
                "stack's file (image: ubuntu-24.04, debian-12, deep-learning), then run trainyard up -s "
                f"{self._stack}, then trainyard bake -s {self._stack}"
            )
        return source

    def find(self, content: ImageContent) -> str | None:
        """Return the newest image with this content, available ones before pending ones; None when there is none."""
        images = find_images(
            self._region, {tags.CONTENT: content.sha256, tags.STACK: self._tag}, ["available", "pending"]
        )
        newest = max(images, key=lambda image: (image["State"] == "available", image["CreationDate"]), default=None)
        return None if newest is None else str(newest["ImageId"])

    def create(self, instance: str, content: ImageContent, stack_tags: Tags) -> str:
        """Start the creation of an image from a stopped instance; return the image's id."""
        description = f"Trainyard stack {self._stack}, bundle {content.bundle[:12]}, based on {content.source}"
        return create_image(self._region, instance, content.name(self._tag), description, content.tags(stack_tags))

    def wait_until_available(self, image: str, deadline: float, display: Display) -> None:
        """Wait for an image. Raises LaunchError when it fails or is not available at `deadline` (Unix time)."""
        while True:
            description = describe_image(self._region, image)
            # EC2 may not list a new image yet, so that a missing image is polled again.
            state = "missing" if description is None else str(description["State"])
            if state == "available":
                return
            if description is not None and state != "pending":
                reason = description.get("StateReason", {}).get("Message", "EC2 reports no reason")
                raise LaunchError(f"the image {image} is {state}: {reason}. Bake again")
            if time.time() > deadline:
                raise LaunchError(f"the image {image} is still {state} at the time limit: set a higher --minutes")
            display.detail("image", f"{image} {state}")
            time.sleep(POLL_SECONDS)

    def delete(self, image: str) -> str:
        """Delete an image and its snapshots; return an empty text, or the reason why it still exists."""
        try:
            delete_image(self._region, image)
        except (BotoCoreError, ClientError) as error:
            return f"the image {image} still exists, because it could not be deleted: {error}"
        return ""
