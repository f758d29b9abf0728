"""Images into tar files as WebDataset has them: `NAME.jpg` or `NAME.png`, then `NAME.cls`."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from trainer.prepare.dataset import Request, Result, build, upload
from trainer.prepare.labels import Image, labelled
from trainer.prepare.parts import Made, Part, is_held_out, order_of, parts_of
from trainer.prepare.pool import Advance
from trainer.prepare.sources import open_file, require_apart
from trainer.prepare.work import held_out_file
from trainer.storage import open_storage
from trainyard.base import InputError, Problem
from trainyard.models.dataset import ImageDataset, Shard

_BAD_SHARE = 0.01  # of images that may be left out
_AS_THEY_ARE = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png"}  # Pillow's names for them


@dataclass(frozen=True)
class ImageMaker:
    """What turns a part into a shard, in a process of its own."""

    target: str
    held_out: float

    def make(self, part: Part[Image], work: Path, advance: Advance) -> Made:
        partial = work / "temporary" / f"{part.address}.tar"
        failed: list[str] = []
        counts = [0, 0]
        with (
            tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as shard,
            tarfile.open(held_out_file(work, part.address), "w", format=tarfile.USTAR_FORMAT) as aside,
        ):
            for number, image in enumerate(part.pieces):
                advance(image.size)
                with open_file(image.file) as stream:
                    content = stream.read()
                try:
                    suffix, stored = _checked(content)
                except Exception as error:  # Pillow raises all kinds on damaged files
                    failed.append(f"{image.file.uri}: {error or type(error).__name__}")
                    continue
                out = is_held_out(content, self.held_out)
                counts[out] += 1
                tar, name = (aside if out else shard), f"{part.number:05d}-{number:07d}"
                _add(tar, f"{name}.{suffix}", stored)
                _add(tar, f"{name}.cls", str(image.label).encode())
        made = upload(partial, open_storage(self.target, "--target"), f"train-{part.number:05d}", ".tar", counts[0])
        return Made(shard=made, held_out=counts[1], samples=sum(counts), left_out=0, failed=tuple(failed))


def prepare_images(source: str, shard_mib: int, request: Request, says: str | None = None) -> Result:
    """Make the dataset. Raises InputError on what the user can mend, OSError where machine or storage fail."""
    require_apart([source], request.target)
    images, classes = labelled(source)
    images.sort(key=lambda image: (order_of(image.file.name), image.file.uri))
    listed = "\n".join(f"{one.file.uri} {one.file.size} {one.file.modified} {one.label}" for one in images)
    words = {"--shard-mib": shard_mib, "the files of SOURCE": sha256(listed.encode()).hexdigest()}
    with request.open(words) as work:
        parts = parts_of(images, shard_mib << 20, {"held_out": request.held_out})

        def check(failed: list[str]) -> None:
            if len(failed) > _BAD_SHARE * len(images):
                some = "; ".join(failed[:5]) + (f"; and {len(failed) - 5} more" if len(failed) > 5 else "")
                why = f"{len(failed)} of {len(images)} images can't be decoded: {some}"
                raise InputError([Problem(key="SOURCE", value=source, why=why, fix="Mend them, or take them out")])

        def index(train: list[Shard], validation: list[Shard], samples: int) -> ImageDataset:
            return ImageDataset(
                name=request.name,
                source=f"{samples} images of {says or source}",
                train=tuple(train),
                validation=tuple(validation),
                kind="images",
                classes=classes,
            )

        def merge(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
            return joined(files, shard_mib << 20, work.temporary)

        maker = ImageMaker(request.target, request.held_out)
        return build(request, work, parts, maker, merge, ".tar", {}, index, check)


def joined(files: Iterable[Path], limit: int, folder: Path) -> Iterator[tuple[Path, int]]:
    """The tar files' images in new ones of about `limit` bytes, and how many each holds."""
    images = _images(files)
    image = next(images, None)
    number = 0
    while image:
        target, count = folder / f"joined-{number}", 0
        with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
            while image and (not count or tar.offset < limit):
                for name, content in image:
                    _add(tar, name, content)
                image, count = next(images, None), count + 1
        yield target, count
        number += 1


def _images(files: Iterable[Path]) -> Iterator[list[tuple[str, bytes]]]:
    """Each image with its label, as names and contents."""
    for file in files:
        with tarfile.open(file) as tar:
            found = ((member.name, tar.extractfile(member)) for member in tar)
            members = ((name, stream.read()) for name, stream in found if stream)
            for image in members:
                yield [image, next(members)]


def _checked(content: bytes) -> tuple[str, bytes]:
    """Suffix and bytes of an image that decodes whole: JPEG and PNG stay as they are, others become PNG."""
    from PIL import Image as Pillow

    with Pillow.open(io.BytesIO(content)) as image:
        image.load()
        suffix = _AS_THEY_ARE.get(image.format or "")
        if suffix:
            return suffix, content
        stored = io.BytesIO()
        image.convert("RGB").save(stored, "PNG")
        return "png", stored.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """No time, owner or mode of the machine's: equal images make equal files."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
