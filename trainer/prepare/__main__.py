"""Convert text files, JSON lines, parquet and images into shards with an index, for the trainer.

Exit status: 0 done, 1 failed, 2 invalid input, 130 interrupted. The same command resumes an interrupted run.
"""

import logging
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from trainer.prepare.chats import ChatOptions, prepare_chats
from trainer.prepare.dataset import Request, Result
from trainer.prepare.documents import MAX_DOCUMENT_BYTES, ReadOptions
from trainer.prepare.images import prepare_images
from trainer.prepare.samples import Kind, prepare_sample
from trainer.prepare.sources import Format
from trainer.prepare.tokens import MAX_TRAINING_BYTES, TextOptions, prepare_tokens
from trainer.prepare.worker_pool import CORES
from trainyard.errors import InputError, Problem

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
log = logging.getLogger("trainer.prepare")

TargetOption = Annotated[str, typer.Option("--target", help="Folder, or s3://bucket/prefix/, of the dataset.")]
NameOption = Annotated[str, typer.Option("--name", help="Name of the dataset.")]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--source-weights",
        help="Share of each SOURCE in the dataset, such as 0.7,0.3, by bytes. If it is larger than that of its text, "
        "documents are repeated; if it is smaller, some are selected by a hash. Default: each document once.",
    ),
]
ShardTokensOption = Annotated[
    str,
    typer.Option(
        help="Approximate number of tokens in a shard; K and M multiply by 1,000 and 1,000,000. Small corpora have "
        "smaller shards: 16 shards if each has 1 MiB of text."
    ),
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option(help="Skip files and folders with matching names. Can be repeated.")
]
PatternOption = Annotated[str, typer.Option(help="Use only files in folders with matching names, such as '*.py'.")]
SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders with all files under them, or s3://bucket/prefix/. Hidden files are skipped. Memory "
        "holds a few documents per process, because files are streamed.",
    ),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=1, help="Number of processes. The result does not depend on it.")
]
WorkOption = Annotated[
    Path | None,
    typer.Option(
        "--work",
        help="Folder for intermediate results: one shard per process, and the held-out samples. "
        "Default: a folder per target under ~/.cache/trainyard/prepare.",
    ),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace the dataset of the target once the new dataset is complete.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def _run(prepare: Callable[[], Result], as_json: bool) -> None:
    """Prepare a dataset and print the result. A failure ends with one message on stderr and an exit status."""
    _configure_logging()
    try:
        result = prepare()
    except InputError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted; the same command resumes the run", 130)
    for message in result.failed:
        log.warning("skipped: %s", message)
    if result.truncated:
        log.warning("%d conversations are longer than a sequence and were truncated", result.truncated)
    if result.empty_documents:
        log.info("%d documents without text skipped", result.empty_documents)
    print(result.model_dump_json() if as_json else _format(result))


def _configure_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("prepare: %(message)s"))
    logger = logging.getLogger("trainer")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def _fail(message: str, status: int) -> None:
    log.error(message)
    raise typer.Exit(status)


def _format(result: Result) -> str:
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
    sources: SourcesArgument,
    target: TargetOption,
    name: NameOption,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="bytes (0 ends a document); the file tokenizer.json of a model; train:VOCAB for a byte-level BPE or "
            "train:VOCAB:wordpiece for a WordPiece as in BERT, trained on up to "
            f"{MAX_TRAINING_BYTES >> 20} MiB of the text."
        ),
    ] = "bytes",
    end: Annotated[
        str | None,
        typer.Option(
            help="Token that ends documents. Default: eos_token or sep_token of tokenizer_config.json in the folder of "
            "the tokenizer, a token with a common name, or <|endoftext|>, which is added."
        ),
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Default: by each file's suffix.")] = None,
    field: Annotated[str, typer.Option(help="Field of a JSON line, or column of a parquet file.")] = "text",
    pattern: PatternOption = "*",
    exclude: ExcludeOption = None,
    weights: WeightsOption = None,
    document_kib: Annotated[
        int,
        typer.Option(
            min=1,
            help="A text file up to this size is one document. A longer file is split at line ends, or between two "
            "characters if no line ends within 64 KiB.",
        ),
    ] = MAX_DOCUMENT_BYTES >> 10,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="Bytes that are no UTF-8: fail, or replace them by U+FFFD.")
    ] = "strict",
    shard_tokens: ShardTokensOption = "64M",
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of documents to hold out, selected by a hash of their text.")
    ] = 0.005,
    workers: WorkersOption = CORES,
    work: WorkOption = None,
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert text files, JSON lines and parquet into token shards.

    Files, and parts of long files, are sorted by a hash of their names, so that each shard has text of all sources.
    Within them documents keep their order, because the trainer shuffles samples.
    """

    def prepare() -> Result:
        options = TextOptions(
            sources=tuple(sources),
            pattern=pattern,
            exclude=tuple(exclude or ()),
            format=format,
            reading=ReadOptions(field, encoding_errors == "replace", document_kib << 10),
            tokenizer=tokenizer,
            end=end,
            shard_tokens=_parse_count(shard_tokens),
            weights=_parse_weights(weights),
        )
        return prepare_tokens(options, _request(target, name, held_out, workers, work, replace))

    _run(prepare, as_json)


@app.command()
def chats(
    sources: SourcesArgument,
    target: TargetOption,
    name: NameOption,
    tokenizer: Annotated[
        Path, typer.Option(help="Folder of the model: tokenizer.json, tokenizer_config.json and the chat template.")
    ],
    sequence_length: Annotated[
        int, typer.Option(min=2, help="model.sequence_length of the training. Longer conversations are truncated.")
    ] = 2048,
    chat_template: Annotated[
        Path | None, typer.Option(help="Jinja template of conversations, instead of that of the tokenizer.")
    ] = None,
    field: Annotated[
        str,
        typer.Option(
            help="Field of a JSON line, or column of a parquet file, with a list of messages: role and content. Rows "
            "without it may have prompt and completion."
        ),
    ] = "messages",
    pattern: PatternOption = "*",
    exclude: ExcludeOption = None,
    weights: WeightsOption = None,
    shard_tokens: ShardTokensOption = "64M",
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of conversations to hold out, selected by a hash.")
    ] = 0.05,
    workers: WorkersOption = CORES,
    work: WorkOption = None,
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert conversations in JSON lines or parquet into token shards for fine-tuning.

    The chat template is applied, and several conversations are packed into each row of the sequence length. The model
    is trained to predict the responses (role assistant) only, and conversations do not attend to each other.
    """

    def prepare() -> Result:
        options = ChatOptions(
            text=TextOptions(
                sources=tuple(sources),
                pattern=pattern,
                exclude=tuple(exclude or ()),
                reading=ReadOptions(field, is_text=False),
                tokenizer=str(tokenizer),
                shard_tokens=_parse_count(shard_tokens),
                weights=_parse_weights(weights),
            ),
            sequence_length=sequence_length,
            chat_template=chat_template,
        )
        return prepare_chats(options, _request(target, name, held_out, workers, work, replace))

    _run(prepare, as_json)


@app.command()
def images(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder, or s3://bucket/prefix/, with a folder for each class; or a list, .csv or .jsonl, with "
            "file_name (relative to it) and label."
        ),
    ],
    target: TargetOption,
    name: NameOption,
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of images to hold out, selected by a hash of their bytes.")
    ] = 0.05,
    shard_mib: Annotated[int, typer.Option(min=1, help="Approximate size of a shard in MiB.")] = 64,
    workers: WorkersOption = CORES,
    work: WorkOption = None,
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert labelled images into tar shards in the WebDataset format.

    Each image is decoded once. JPEG and PNG files are stored as they are, others are converted to PNG. Images that
    can't be decoded are reported and skipped; more than 1 % of them is an error.
    """
    _run(lambda: prepare_images(source, shard_mib, _request(target, name, held_out, workers, work, replace)), as_json)


@app.command()
def sample(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"{', '.join(get_args(Kind))}.")],
    target: TargetOption,
    name: Annotated[str | None, typer.Option("--name", help="Name of the dataset. Default: KIND.")] = None,
    workers: WorkersOption = CORES,
    work: WorkOption = None,
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare a small dataset without network access: Python's standard library, or scikit-learn's digits."""
    _run(lambda: prepare_sample(kind, _request(target, name or kind, 0.05, workers, work, replace)), as_json)


def _request(target: str, name: str, held_out: float, workers: int, work: Path | None, replace: bool) -> Request:
    return Request(target=target, name=name, held_out=held_out, workers=workers, work=work, replace=replace)


def _parse_weights(text: str | None) -> tuple[float, ...]:
    """Parse shares such as 0.7,0.3."""
    try:
        weights = tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        weights = (0.0,)
    if not all(0 < weight < inf for weight in weights):
        reason, fix = "is no list of positive numbers", "Write one number for each SOURCE, such as 0.7,0.3"
        raise InputError([Problem("--source-weights", text, reason, fix, "invalid_weights")])
    return weights


def _parse_count(text: str) -> int:
    """Parse a number of tokens such as 64M."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("K", "M") else (text, "")
    if not number.isdigit() or int(number) == 0:
        reason, fix = "is no number of tokens", "Write a number such as 64M or 500K"
        raise InputError([Problem("--shard-tokens", text, reason, fix, "invalid_token_count")])
    return int(number) * {"": 1, "K": 1_000, "M": 1_000_000}[unit]


if __name__ == "__main__":
    app(prog_name="python -m trainer.prepare")
