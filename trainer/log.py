"""Logging of the trainer's programs: one format, configured once by each entry point."""

import logging
import time
from collections.abc import Mapping
from typing import TextIO

# Field of a line -> environment variable. The node's agent sets the run, torchrun the other two.
_FIELDS = {"run": "TRAINYARD_RUN", "node": "GROUP_RANK", "rank": "RANK"}


def configure_logging(variables: Mapping[str, str], stream: TextIO) -> None:
    """Write the trainer's log records from INFO on to `stream`; the field of an absent variable is omitted.

    A line is: UTC time, level, component, run=, node= and rank=, message.
    """
    fields = "".join(f" {name}={variables[key]}" for name, key in _FIELDS.items() if variables.get(key))
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s{fields.replace('%', '%%')}: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("trainer")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a library that configures the root logger would print each line again
