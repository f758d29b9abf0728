"""Log format of the trainer."""

import io
import logging
import re
from collections.abc import Iterator

import pytest

from trainer.log import configure_logging


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    logger = logging.getLogger("trainer")
    handlers, propagate = logger.handlers, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate


def test_line_has_time_level_component_and_job_fields() -> None:
    stream = io.StringIO()
    configure_logging({"TRAINYARD_RUN": "run-1", "GROUP_RANK": "2", "RANK": "5"}, stream)
    logging.getLogger("trainer.loop").info("done: %d", 7)
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO trainer\.loop run=run-1 node=2 rank=5: done: 7\n"
    assert re.fullmatch(pattern, stream.getvalue())


def test_absent_variables_are_omitted() -> None:
    stream = io.StringIO()
    configure_logging({}, stream)
    logging.getLogger("trainer.loop").warning("message")
    assert stream.getvalue().endswith("Z WARNING trainer.loop: message\n")
