"""Logging of the programs on a node and of the trainer: one line format.

Standard library only: programs use it before a Python environment exists. trainyard/node/bootstrap.py is carried alone
in user data, so it repeats the format.
"""

import logging
import time
from typing import TextIO

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s%(fields)s: %(message)s"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"  # UTC, ISO 8601
_fields: dict[str, str] = {}


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.fields = "".join(f" {name}={value}" for name, value in _fields.items() if value)
        return super().format(record)


def configure_logging(
    logger: str = "", stream: TextIO | None = None, *, run: str = "", node: str = "", rank: str = ""
) -> None:
    """Write the records of `logger` and its children at level INFO and above to `stream`, by default stderr.

    A line is: UTC time, level, name of the logger, run=, node= and rank=, message. A field without a value is omitted.

    `logger`: name of the logger; empty: the root logger. `run`: run id. `node`: EC2 instance id. `rank`: global rank.
    """
    _fields.update(run=run, node=node, rank=rank)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(FORMAT, TIME_FORMAT))
    target = logging.getLogger(logger)
    target.handlers = [handler]
    target.setLevel(logging.INFO)
    target.propagate = False  # a library that configures the root logger would write each line again
    for library in ("botocore", "websockets"):
        logging.getLogger(library).setLevel(logging.WARNING)


def set_run(run: str) -> None:
    """Write this run id in the log records that follow."""
    _fields["run"] = run
