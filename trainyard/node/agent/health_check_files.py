"""Files that the processes of a health check have written on this node."""

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from trainyard.node.health_check.process_report import ProcessReport
from trainyard.node.job_user import read_job_file


def read_reports(folder: Path) -> list[ProcessReport]:
    """Reports of all processes of this node that have started."""
    known = {entry.name for entry in fields(ProcessReport)}
    reports = []
    for file in sorted(folder.glob("process-*.json")):
        with suppress(OSError, ValueError, TypeError):  # no process of the health check has written it
            content = json.loads(read_job_file(file))
            values = {name: value for name, value in content.items() if name in known}
            reports.append(ProcessReport(**values | {"file": file}))
    return reports


def read_logs(folder: Path) -> list[str]:
    """NCCL logs of this node's processes."""
    logs = []
    for file in sorted(folder.glob("nccl.*")):
        with suppress(OSError):  # it is no regular file
            logs.append(read_job_file(file).decode(errors="replace"))
    return logs
