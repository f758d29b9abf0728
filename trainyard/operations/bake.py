"""Bake the workers' image: a builder configures itself like a worker, stops, and becomes the image that workers boot.

When a bake fails, the builder is terminated and the stack file is not changed. When the operator's process is killed, a
running builder shuts down at its time limit and EC2 terminates it; a stopped builder is terminated by the next bake,
`trainyard stop` or `pulumi destroy`.
"""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.catalog import catalog
from trainyard.errors import InputError, Problem
from trainyard.models.manifest import WorkerGroup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.image_builder import Builder, LaunchTemplate, read_launch_template, terminate_builders
from trainyard.operations.images import ImageContent, StackImages, compute_content
from trainyard.operations.progress import Display
from trainyard.operations.signals import ignore_signals, sigterm_as_interrupt
from trainyard.operations.stack_file import StackFile
from trainyard.operations.startup import Deadline
from trainyard.quantity import quantity


class BakeResult(StrictModel):
    """`trainyard bake --json`."""

    image: str = Field(description="Id of the image.")
    created: bool = Field(description="Whether this bake created it; an image with the same content is reused.")
    source_image: str = Field(description="Id of the image that it is based on.")
    content_sha256: str = Field(description="SHA-256 of the image's inputs, as in its tag trainyard:content.")
    has_drivers: bool = Field(description="Whether the drivers of the group's hardware are installed in it.")
    stack_file: str = Field(description="The stack's file, which names the image.")
    stack_file_changed: bool = Field(description="Whether this bake changed the file.")


@dataclass(frozen=True, kw_only=True)
class BakeOptions:
    """Options of a bake.

    `minutes`: time limit, after which the builder terminates. `group`: None for the first worker group.
    `instance_type`: None for the group's type. `file`: the stack's file.
    """

    minutes: float
    file: Path
    group: str | None = None
    instance_type: str | None = None


def bake(cluster: Cluster, options: BakeOptions, display: Display) -> BakeResult:
    """Create the image of a worker group and write it into the stack's file.

    Raises InputError for a user error, LaunchError for every other failure.
    """
    file = StackFile(options.file)
    group = _find_group(cluster, options.group)
    instance_type = options.instance_type or group.instance_type
    has_drivers = instance_type == group.instance_type
    template, images = read_launch_template(cluster, group), StackImages(cluster)
    content = compute_content(cluster.manifest, group, images.source_image(template.image), has_drivers)
    if expired := terminate_builders(cluster, time.time()):
        display.line("builder", f"terminated builders of an earlier bake that was killed: {', '.join(expired)}")
    deadline = Deadline(options.minutes, "--minutes")
    image = images.find(content)
    created = image is None
    if image is not None:
        display.line("image", f"{image} has the same content and is reused")
        images.wait_until_available(image, deadline.at, display)
    else:
        image = _ImageBuild(cluster, group, template, content, images, deadline, display).run(instance_type)
    display.line("image", f"{image} available")
    stack_file_changed = file.write_image(image)
    return BakeResult(
        image=image,
        created=created,
        source_image=content.source,
        content_sha256=content.sha256,
        has_drivers=has_drivers,
        stack_file=str(file.path),
        stack_file_changed=stack_file_changed,
    )


@dataclass(frozen=True)
class _ImageBuild:
    """The creation of one image with one builder."""

    cluster: Cluster
    group: WorkerGroup
    template: LaunchTemplate
    content: ImageContent
    images: StackImages
    deadline: Deadline
    display: Display

    def run(self, instance_type: str) -> str:
        """Create the image and terminate the builder; return the image's id."""
        builder = Builder(self.cluster, f"bake-{secrets.token_hex(8)}", self.display)
        image = ""
        with sigterm_as_interrupt():
            try:
                name = builder.launch(self._request(builder, instance_type))
                limit = f"at most {quantity(self.deadline.minutes, 'minute')}"
                self.display.line("builder", f"{name}, {_describe_price(instance_type)}, {limit}")
                builder.wait_until_configured(self.deadline)
                self.display.line("builder", f"{name} is configured: stopping it")
                builder.stop(self.deadline)
                image = self.images.create(name, self.content, self.template.tags)
                self.display.line("image", f"creating {image}")
                self.images.wait_until_available(image, self.deadline.at, self.display)
            except BaseException as error:
                with ignore_signals():
                    problems = [image and self.images.delete(image), builder.terminate()]
                if remaining := [problem for problem in problems if problem]:
                    reason = str(error) or type(error).__name__
                    raise LaunchError(f"{reason}. {'. '.join(remaining)}") from None
                raise
            with ignore_signals():
                problem = builder.terminate()
        if problem:
            raise LaunchError(
                f"the image {image} is available, but the stack file is not changed: {problem}. Bake again"
            )
        return image

    def _request(self, builder: Builder, instance_type: str) -> dict[str, object]:
        until = self.deadline.at
        builder_tags = builder.tags(self.template.tags, until)
        return self.template.request(self.group, self.content.source, instance_type, until, builder_tags)


def _find_group(cluster: Cluster, name: str | None) -> WorkerGroup:
    groups = cluster.manifest.groups
    for group in groups:
        if name in (None, group.name):
            return group
    names = ", ".join(group.name for group in groups)
    problem = Problem(
        "--group", name, "the stack has no worker group of this name", f"Use one of {names}", "unknown_worker_group"
    )
    raise InputError([problem])


def _describe_price(instance_type: str) -> str:
    entry = catalog().get(instance_type)
    price = entry.on_demand_usd if entry else None
    return instance_type if price is None else f"{instance_type} at {price:g} USD per hour (list price)"


def format_result(result: BakeResult, stack: str) -> list[str]:
    """Return the result as lines for people, with the next command."""
    lines = [f"image: {result.image} ({'created' if result.created else 'reused'}), based on {result.source_image}"]
    if not result.has_drivers:
        lines.append("the image has no drivers for the group's hardware: nodes install them when they boot")
    change = "was written to" if result.stack_file_changed else "is already in"
    lines.append(
        f"the image {change} {result.stack_file}; next: trainyard up -s {stack} (running nodes are not changed)"
    )
    return lines
