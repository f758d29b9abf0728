"""Small real data for each kind of model, from what is on the machine: no network."""

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from trainer.prepare.dataset import Request, Result
from trainer.prepare.documents import Reading
from trainer.prepare.images import prepare_images
from trainer.prepare.tokens import Text, prepare_tokens
from trainyard.base import InputError, Problem

Kind = Literal["python-bytes", "python-bpe", "python-wordpiece", "digits"]
_TOKENIZERS = {"python-bytes": "bytes", "python-bpe": "train:8192", "python-wordpiece": "train:8192:wordpiece"}
_LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__")


def prepare_sample(kind: Kind, request: Request) -> Result:
    """Raises InputError where this Python lacks what the sample is made from."""
    if kind != "digits":
        return prepare_tokens(python_sources(_TOKENIZERS[kind]), request)
    with digits() as folder:
        return prepare_images(str(folder), 64, request, "scikit-learn's digits")


def python_sources(tokenizer: str) -> Text:
    """The standard library of this Python, without its tests: some 10 MB of text in 800 files."""
    return Text(
        sources=(sysconfig.get_path("stdlib"),),
        pattern="*.py",
        exclude=_LEFT_OUT,
        format="text",
        # Some old modules are Latin-1. Some are long: what is held out should be near its share of so little text.
        reading=Reading(replace=True, document=64 << 10),
        tokenizer=tokenizer,
        says=f"the sources of Python {sysconfig.get_python_version()}'s standard library",
    )


@contextmanager
def digits() -> Iterator[Path]:
    """scikit-learn's 1797 hand-written digits of 8 x 8 pixels as PNG, a folder for each class."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        why = "scikit-learn, which ships the digits, is not installed"
        raise InputError([Problem(key="KIND", value="digits", why=why, fix="Run pip install scikit-learn")]) from None
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
