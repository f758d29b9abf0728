"""Log format of the programs on a node and of the trainer."""

import re
import subprocess
import sys
from pathlib import Path

from trainyard import log

BOOTSTRAP = Path(__file__).parents[2] / "trainyard/node/bootstrap.py"
NODE_PROGRAM = """
import logging
from trainyard.log import configure_logging, set_run
configure_logging(node="i-1")
logging.getLogger("streams").info("first %d", 1)
set_run("r-1")
logging.getLogger("streams").error("second")
"""
TRAINER_PROGRAM = """
import logging, sys
from trainyard.log import configure_logging
logging.basicConfig()
configure_logging("trainer", sys.stdout, run="r-1", node="i-1", rank="5")
logging.getLogger("trainer.loop").warning("message")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


def test_records_have_time_level_logger_run_and_node() -> None:
    first, second = run(NODE_PROGRAM).stderr.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO streams node=i-1: first 1", first)
    assert second.endswith("Z ERROR streams run=r-1 node=i-1: second")


def test_records_of_the_trainer_have_the_rank_and_appear_once() -> None:
    result = run(TRAINER_PROGRAM)
    assert re.fullmatch(r"\S+Z WARNING trainer\.loop run=r-1 node=i-1 rank=5: message\n", result.stdout)
    assert result.stderr == ""


def test_bootstrap_uses_the_same_format() -> None:
    text = BOOTSTRAP.read_text()
    assert f'format="{log.FORMAT.replace("%(fields)s", "")}"' in text
    assert f'datefmt="{log.TIME_FORMAT}"' in text
