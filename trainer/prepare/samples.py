"""Small real datasets for each kind of model, from files on the machine, without network access."""

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from trainer.prepare.dataset import Request, Result
from trainer.prepare.documents import ReadOptions
from trainer.prepare.images import prepare_images
from trainer.prepare.tokens import TextOptions, prepare_tokens
from trainyard.errors import InputError, Problem

Kind = Literal["python-bytes", "python-bpe", "python-wordpiece", "digits"]
_TOKENIZERS = {"python-bytes": "bytes", "python-bpe": "train:8192", "python-wordpiece": "train:8192:wordpiece"}
_EXCLUDED = ("site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__")


def prepare_sample(kind: Kind, request: Request) -> Result:
    """Prepare a sample dataset. Raises InputError if a package that it needs is not installed."""
    if kind != "digits":
        return prepare_tokens(python_sources(_TOKENIZERS[kind]), request)
    with digits() as folder:
        return prepare_images(str(folder), 64, request, "scikit-learn's digits")


def python_sources(tokenizer: str) -> TextOptions:
    """Return options for this Python's standard library without its tests: about 10 MB of text in 800 files."""
    return TextOptions(
        sources=(sysconfig.get_path("stdlib"),),
        pattern="*.py",
        exclude=_EXCLUDED,
        format="text",
        # Some old modules are Latin-1. Long modules are split into small documents, because with so little text large
        # documents would make the held-out share inexact.
        reading=ReadOptions(replace_invalid=True, document_bytes=64 << 10),
        tokenizer=tokenizer,
        description=f"the sources of Python {sysconfig.get_python_version()}'s standard library",
    )


@contextmanager
def digits() -> Iterator[Path]:
    """Write scikit-learn's 1797 handwritten digits of 8 x 8 pixels as PNG files, in a folder for each class."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        reason, fix = "scikit-learn, which has the digits, is not installed", "Run pip install scikit-learn"
        raise InputError([Problem("KIND", "digits", reason, fix, "package_missing")]) from None
    import numpy as np
    from PIL import Image

    loaded = load_digits()
    with TemporaryDirectory(prefix="trainyard-digits-") as temporary:
        folder = Path(temporary) / "digits"
        for number, (pixels, label) in enumerate(zip(loaded.images, loaded.target, strict=True)):
            file = folder / str(label) / f"{number:04d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(file)
        yield folder
