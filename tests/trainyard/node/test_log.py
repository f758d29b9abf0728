"""Log format of the programs on a node."""

import re
import subprocess
import sys
from pathlib import Path

from trainyard.node import log

BOOTSTRAP = Path(__file__).parents[3] / "trainyard/node/bootstrap.py"
PROGRAM = """
import logging
from trainyard.node.log import configure_logging, set_run
configure_logging("agent", "i-1")
logging.getLogger("streams").info("first %d", 1)
set_run("r-1")
logging.getLogger("streams").error("second")
"""


def test_records_have_time_level_component_run_and_node() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second = result.stderr.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO agent run=- node=i-1 first 1", first)
    assert second.endswith("Z ERROR agent run=r-1 node=i-1 second")


def test_bootstrap_uses_the_same_format() -> None:
    values = {"component": "bootstrap", "run": "-", "node": "-"}
    expected = log.FORMAT
    for name, value in values.items():
        expected = expected.replace(f"%({name})s", value)
    assert f'format="{expected}"' in BOOTSTRAP.read_text()
    assert f'datefmt="{log.TIME_FORMAT}"' in BOOTSTRAP.read_text()
