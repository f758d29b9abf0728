"""Converts images into tar files in the WebDataset format: `NAME.jpg` or `NAME.png`, then `NAME.cls`."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from trainer.prepare.dataset import Request, Result, build_dataset, upload_shard
from trainer.prepare.labels import Image, list_labelled_images
from trainer.prepare.partitioning import Part, PartResult, is_held_out, partition, shuffle_key
from trainer.prepare.sources import open_file, require_target_outside_sources
from trainer.prepare.work_folder import held_out_path
from trainer.prepare.worker_pool import Advance
from trainer.storage import open_storage
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import ImageDataset, Shard

_MAX_FAILED_SHARE = 0.01  # of the images
_KEPT_FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png"}  # Pillow's format names


@dataclass(frozen=True)
class ImageShardBuilder:
    """Converts a part to a shard of images, in a worker process."""

    target: str
    held_out: float

    def build(self, part: Part[Image], work: Path, advance: Advance) -> PartResult:
        """Verify the images, and write them to the shard and to the held-out file."""
        partial = work / "temporary" / f"{part.fingerprint}.tar"
        failed: list[str] = []
        counts = [0, 0]
        with (
            tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as shard_tar,
            tarfile.open(held_out_path(work, part.fingerprint), "w", format=tarfile.USTAR_FORMAT) as held_out_tar,
        ):
            for number, image in enumerate(part.items):
                advance(image.size)
                with open_file(image.file) as stream:
                    content = stream.read()
                try:
                    suffix, stored = _verify(content)
                except Exception as error:  # Pillow raises many types for damaged files
                    failed.append(f"{image.file.uri}: {error or type(error).__name__}")
                    continue
                held_out = is_held_out(content, self.held_out)
                counts[held_out] += 1
                tar, name = (held_out_tar if held_out else shard_tar), f"{part.number:05d}-{number:07d}"
                _add(tar, f"{name}.{suffix}", stored)
                _add(tar, f"{name}.cls", str(image.label).encode())
        name = f"train-{part.number:05d}"
        shard = upload_shard(partial, open_storage(self.target, "--target"), name, ".tar", counts[0])
        return PartResult(shard=shard, held_out=counts[1], samples=sum(counts), empty_documents=0, failed=tuple(failed))


def prepare_images(source: str, shard_mib: int, request: Request, description: str | None = None) -> Result:
    """Prepare a dataset of images. `description`: of the source, for the index; None: the source.

    Raises InputError for invalid arguments or data, OSError for failures of machine or storage.
    """
    require_target_outside_sources([source], request.target)
    images, classes = list_labelled_images(source)
    images.sort(key=lambda image: (shuffle_key(image.file.name), image.file.uri))
    listing = "\n".join(f"{image.file.uri} {image.file.size} {image.file.modified} {image.label}" for image in images)
    settings = {"--shard-mib": shard_mib, "the files of SOURCE": sha256(listing.encode()).hexdigest()}
    with request.open_work_folder(settings) as work:
        parts = partition(images, shard_mib << 20, {"held_out": request.held_out})

        def check(failed: list[str]) -> None:
            if len(failed) > _MAX_FAILED_SHARE * len(images):
                examples = "; ".join(failed[:5]) + (f"; and {len(failed) - 5} more" if len(failed) > 5 else "")
                reason = f"{len(failed)} of {len(images)} images can't be decoded: {examples}"
                raise InputError([Problem("SOURCE", source, reason, "Repair or remove them", "images_not_decodable")])

        def create_index(train: list[Shard], validation: list[Shard], samples: int) -> ImageDataset:
            return ImageDataset(
                name=request.name,
                source=f"{samples} images of {description or source}",
                train=tuple(train),
                validation=tuple(validation),
                kind="images",
                classes=classes,
            )

        def merge(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
            return merge_tar_files(files, shard_mib << 20, work.temporary)

        builder = ImageShardBuilder(request.target, request.held_out)
        return build_dataset(request, work, parts, builder, merge, ".tar", {}, create_index, check)


def merge_tar_files(files: Iterable[Path], limit_bytes: int, folder: Path) -> Iterator[tuple[Path, int]]:
    """Merge the images of tar files into new files of about `limit_bytes`. Yields each file and its image count."""
    images = _read_images(files)
    image = next(images, None)
    number = 0
    while image:
        target, count = folder / f"merged-{number}", 0
        with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
            while image and (not count or tar.offset < limit_bytes):
                for name, content in image:
                    _add(tar, name, content)
                image, count = next(images, None), count + 1
        yield target, count
        number += 1


def _read_images(files: Iterable[Path]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield name and content of each image, followed by those of its label."""
    for file in files:
        with tarfile.open(file) as tar:
            streams = ((member.name, tar.extractfile(member)) for member in tar)
            members = ((name, stream.read()) for name, stream in streams if stream)
            for image in members:
                yield [image, next(members)]


def _verify(content: bytes) -> tuple[str, bytes]:
    """Decode an image completely, and return suffix and bytes to store: JPEG and PNG as they are, others as PNG."""
    from PIL import Image as Pillow

    with Pillow.open(io.BytesIO(content)) as image:
        image.load()
        suffix = _KEPT_FORMATS.get(image.format or "")
        if suffix:
            return suffix, content
        stored = io.BytesIO()
        image.convert("RGB").save(stored, "PNG")
        return "png", stored.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member with default time, owner and mode, so that equal images result in equal files."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
