"""The baked image: one builder configures itself as a worker does, is cleaned, and becomes the image that workers boot.

Whatever breaks: the builder is gone, and nothing is written. A builder whose operator has died switches itself off, for
which EC2 terminates it; one that was stopped already goes with the next bake, `trainyard stop` or `pulumi destroy`.
"""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from trainyard.base import Contract, InputError, Problem
from trainyard.config.catalog import catalog
from trainyard.models.manifest import WorkerGroup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.image_builder import Builder, Template, end_builders, template_of
from trainyard.operations.images import Content, Images, content_of
from trainyard.operations.progress import Display
from trainyard.operations.signals import interruptible, undisturbed
from trainyard.operations.stack_file import StackFile, path_of
from trainyard.operations.startup import Deadline


class BakeResult(Contract):
    """`trainyard bake --json`."""

    image: str = Field(description="Id of the image.")
    made: bool = Field(description="Whether this bake has made it; an image of the same content is used again.")
    source: str = Field(description="The image below it.")
    content: str = Field(description="SHA-256 of all that it holds, as in its tag.")
    drivers: bool = Field(description="Whether what drives the group's hardware is in it.")
    file: str = Field(description="The stack's file, which names it.")
    written: bool = Field(description="Whether the file has changed.")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """`minutes`: when the builder ends in any case. None: the first group, its own type, the stack's own file."""

    minutes: float
    group: str | None = None
    instance_type: str | None = None
    file: Path | None = None


def bake(cluster: Cluster, asked: Asked, show: Display) -> BakeResult:
    """Raises InputError for what the user can mend, LaunchError for all that breaks."""
    file = StackFile(asked.file or path_of(cluster.stack))
    group = _group(cluster, asked.group)
    instance_type = asked.instance_type or group.instance_type
    complete = instance_type == group.instance_type
    template, images = template_of(cluster, group), Images(cluster.stack, cluster.region)
    content = content_of(cluster.manifest, group, images.source_of(template.image), complete)
    if left := end_builders(cluster, time.time()):
        show.line("builder", f"ended, as an earlier bake left them: {', '.join(left)}")
    deadline = Deadline(asked.minutes, "--minutes")
    image = images.find(content)
    made = image is None
    if image is not None:
        show.line("image", f"{image} of this very content is there")
        images.wait(image, deadline.at, show)
    else:
        image = _Bake(cluster, group, template, content, images, deadline, show).go(instance_type)
    show.line("image", f"{image} ready")
    written = file.write_image(image)
    return BakeResult(
        image=image,
        made=made,
        source=content.source,
        content=content.sha256,
        drivers=complete,
        file=str(file.path),
        written=written,
    )


@dataclass(frozen=True)
class _Bake:
    """One builder's way to an image."""

    cluster: Cluster
    group: WorkerGroup
    template: Template
    content: Content
    images: Images
    deadline: Deadline
    show: Display

    def go(self, instance_type: str) -> str:
        builder = Builder(self.cluster, f"bake-{secrets.token_hex(8)}", self.show)
        image = ""
        with interruptible():
            try:
                own, until = self.template.tags, self.deadline.at
                request = self.template.request(
                    self.group, self.content.source, instance_type, until, builder.tags(own, until)
                )
                name = builder.launch(request)
                self.show.line(
                    "builder", f"{name}, {_priced(instance_type)}, at most {self.deadline.minutes:g} minutes"
                )
                builder.wait_until_clean(self.deadline)
                self.show.line("builder", f"{name} is configured and clean: stopping it")
                builder.stop(self.deadline)
                image = self.images.make(name, self.content, own)
                self.show.line("image", f"{image} is being made")
                self.images.wait(image, self.deadline.at, self.show)
            except BaseException as error:
                with undisturbed():
                    stays = [told for told in (image and self.images.remove(image), builder.end()) if told]
                if stays:
                    reason = str(error) or type(error).__name__
                    raise LaunchError(f"{reason}. {'. '.join(stays)}") from None
                raise
            with undisturbed():
                stays_on = builder.end()
        if stays_on:
            raise LaunchError(f"the image {image} is ready, and nothing was written: {stays_on}. Then bake again")
        return image


def _group(cluster: Cluster, name: str | None) -> WorkerGroup:
    groups = cluster.manifest.groups
    for group in groups:
        if name in (None, group.name):
            return group
    named = ", ".join(group.name for group in groups)
    raise InputError(
        [Problem(key="--group", value=name, why="the stack has no such group", fix=f"Name one of {named}")]
    )


def _priced(instance_type: str) -> str:
    known = catalog().get(instance_type)
    price = known.on_demand_usd if known else None
    return instance_type if price is None else f"{instance_type} at {price:g} USD an hour (list price)"


def in_words(result: BakeResult, stack: str) -> list[str]:
    """What came of it, and what to do next."""
    lines = [f"image: {result.image} ({'made' if result.made else 'was there'}), on {result.source}"]
    if not result.drivers:
        lines.append("the drivers of the group's hardware are not in it: nodes install them where the image has none")
    stands = "is written into" if result.written else "stands in"
    lines.append(f"it {stands} {result.file}; next: pulumi up -s {stack} (nodes that run are not touched)")
    return lines
