"""Logging of the programs on a node: one format, written to stderr, which systemd adds to the journal.

Standard library only: programs use it before a Python environment exists. trainyard/node/bootstrap.py is carried alone
in user data, so it repeats the format.
"""

import logging
import time

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(component)s run=%(run)s node=%(node)s %(message)s"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"  # UTC, ISO 8601
_context = {"component": "-", "run": "-", "node": "-"}


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.__dict__.update(_context)
        return super().format(record)


def configure_logging(component: str, node: str = "-", run: str = "-") -> None:
    """Log records of this process at level INFO and above to stderr.

    `component`: name of the program, such as agent or controller. `node`: EC2 instance id. `run`: run id, if known.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(FORMAT, TIME_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    _context.update(component=component, node=node)
    set_run(run)


def set_run(run: str) -> None:
    """Write this run id in the log records that follow."""
    _context["run"] = run
