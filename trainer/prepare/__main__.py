"""Text files, JSON lines, parquet and images into shards with an index, for the trainer.

Exit status: 0 done, 1 failed, 2 bad input. A killed run goes on where it was when the same words start it again.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from trainer.prepare.dataset import Request, Result
from trainer.prepare.documents import DOCUMENT, Reading
from trainer.prepare.images import prepare_images
from trainer.prepare.pool import CORES
from trainer.prepare.progress import say
from trainer.prepare.samples import Kind, prepare_sample
from trainer.prepare.sources import Format
from trainer.prepare.tokens import LEARNT, Text, prepare_tokens
from trainyard.base import InputError, Problem

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


Target = Annotated[str, typer.Option("--target", help="Folder, or s3://bucket/prefix/, that the dataset goes to.")]
Name = Annotated[str, typer.Option("--name", help="Name of the dataset.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes; the outcome is the same with any number.")]
Work = Annotated[
    Path | None,
    typer.Option(
        "--work",
        help="Folder for what is done so far and for shards on their way: one shard a process, and what is held out. "
        "None: one a target under ~/.cache/trainyard/prepare.",
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the dataset that the target holds, once all is made.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def _told(prepare: Callable[[], Result], as_json: bool) -> None:
    """What came of it; each kind of failure as one message on stderr and its exit status."""
    try:
        result = prepare()
    except InputError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted; the same words go on from here", 130)
    for text in result.failed:
        say(f"left out: {text}")
    if result.left_out:
        say(f"{result.left_out} documents without text left out")
    print(result.model_dump_json() if as_json else _in_words(result))


def _fail(message: str, status: int) -> None:
    print(f"prepare: {message}", file=sys.stderr)
    raise typer.Exit(status)


def _in_words(result: Result) -> str:
    data = result.dataset
    unit = data.kind
    train, held_out = (sum(shard.count for shard in shards) for shards in (data.train, data.validation))
    rate = result.bytes / 1e6 / max(result.seconds, 1e-3)
    return (
        f"{result.target}: {train} {unit} in {len(data.train)} shards, {held_out} held out in {len(data.validation)}; "
        f"{result.samples} samples, {result.bytes / 1e6:.1f} MB in {result.seconds:.1f} s, {rate:.1f} MB/s"
    )


@app.command()
def tokens(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files, folders with all under them, s3://bucket/prefix/. Hidden files are left out. All is "
            "streamed: memory holds some documents a process, never the whole.",
        ),
    ],
    target: Target,
    name: Name,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="bytes (0 ends a document); the file tokenizer.json of a model; train:VOCAB for a byte-level BPE or "
            f"train:VOCAB:wordpiece for a WordPiece as BERT has, trained on up to {LEARNT >> 20} MiB of the text."
        ),
    ] = "bytes",
    end: Annotated[
        str | None,
        typer.Option(
            help="Token that ends documents. None: what tokenizer_config.json beside the file calls eos or sep, or "
            "what is commonly called so, or <|endoftext|>, added."
        ),
    ] = None,
    format: Annotated[Format | None, typer.Option(help="None: by each file's suffix.")] = None,
    field: Annotated[str, typer.Option(help="Field of a JSON line, or column of a parquet file.")] = "text",
    pattern: Annotated[str, typer.Option(help="Take only files in folders with names such as '*.py'.")] = "*",
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave out files and folders with such a name; may be given again.")
    ] = None,
    document_kib: Annotated[
        int,
        typer.Option(
            min=1,
            help="A text file is one document up to this size; a longer one is cut at line ends, or between two "
            "characters where no line ends within 64 KiB.",
        ),
    ] = DOCUMENT >> 10,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What is no UTF-8: refuse it, or replace it by U+FFFD.")
    ] = "strict",
    shard_tokens: Annotated[
        str,
        typer.Option(
            help="Tokens in a shard, about; K and M multiply by 1,000 and 1,000,000. Small corpora make smaller "
            "shards, 16 of them where each has 1 MiB of text."
        ),
    ] = "64M",
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of documents to hold out, chosen by a hash of their text.")
    ] = 0.005,
    workers: Workers = CORES,
    work: Work = None,
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Text files, JSON lines and parquet into token shards.

    Files, and stretches of long ones, are put in an order by a hash of their names, so that each shard has some of all
    sources; within them documents stay in order, for the trainer shuffles samples.
    """

    def prepare() -> Result:
        text = Text(
            sources=tuple(sources),
            pattern=pattern,
            exclude=tuple(exclude or ()),
            format=format,
            reading=Reading(field, encoding_errors == "replace", document_kib << 10),
            tokenizer=tokenizer,
            end=end,
            shard_tokens=_count(shard_tokens),
        )
        return prepare_tokens(text, _request(target, name, held_out, workers, work, replace))

    _told(prepare, as_json)


@app.command()
def images(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder, or s3://bucket/prefix/, with a folder for each class; or a list, .csv or .jsonl, with "
            "file_name (relative to it) and label."
        ),
    ],
    target: Target,
    name: Name,
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of images to hold out, chosen by a hash of their bytes.")
    ] = 0.05,
    shard_mib: Annotated[int, typer.Option(min=1, help="MiB in a shard, about.")] = 64,
    workers: Workers = CORES,
    work: Work = None,
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Labelled images into tar shards as WebDataset has them.

    Each is decoded once. JPEG and PNG stay as they are, others become PNG; those that can't be decoded are named and
    left out, and more than 1 % of them are refused.
    """
    _told(lambda: prepare_images(source, shard_mib, _request(target, name, held_out, workers, work, replace)), as_json)


@app.command()
def sample(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"{', '.join(get_args(Kind))}.")],
    target: Target,
    name: Annotated[str | None, typer.Option("--name", help="Name of the dataset; none: KIND.")] = None,
    workers: Workers = CORES,
    work: Work = None,
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Small real data without network: the sources of Python's standard library, and scikit-learn's digits."""

    _told(lambda: prepare_sample(kind, _request(target, name or kind, 0.05, workers, work, replace)), as_json)


def _request(target: str, name: str, held_out: float, workers: int, work: Path | None, replace: bool) -> Request:
    return Request(target=target, name=name, held_out=held_out, workers=workers, work=work, replace=replace)


def _count(text: str) -> int:
    """A number of tokens such as 64M."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("K", "M") else (text, "")
    if not number.isdigit() or int(number) == 0:
        why = "is no number of tokens"
        raise InputError([Problem(key="--shard-tokens", value=text, why=why, fix="Write one such as 64M or 500K")])
    return int(number) * {"": 1, "K": 1_000, "M": 1_000_000}[unit]


if __name__ == "__main__":
    app(prog_name="python -m trainer.prepare")
