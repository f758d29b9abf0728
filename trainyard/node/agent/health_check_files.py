"""Files that the processes of a health check have written on this node."""

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainyard.models.health_check import NodeMeasurements
from trainyard.node.health_check.process_report import ProcessReport, report_file
from trainyard.node.job_user import list_job_folder, read_job_file

_REPORT_BYTES = 1 << 16  # longest report of a process
_LISTED_FILES = 1000
_OBJECT, _REPORT = TypeAdapter(dict[str, Any]), TypeAdapter(ProcessReport)
_REPORTED = {entry.name for entry in fields(ProcessReport)}
_MEASURED = (_REPORTED & NodeMeasurements.model_fields.keys()) - {"seconds"}  # those of a report are of its stages


def read_reports(folder: Path, processes: int) -> list[ProcessReport]:
    """Valid reports of this node's `processes` that have started."""
    reports = []
    for local_rank in range(processes):
        with suppress(OSError, ValueError):  # it has not started, or another program has written the file
            reports.append(_read_report(report_file(folder, local_rank)))
    return reports


def _read_report(file: Path) -> ProcessReport:
    """Report in a file. Raises ValueError if a value is not valid, also as a measurement."""
    content = _OBJECT.validate_json(read_job_file(file, _REPORT_BYTES))
    values = {name: value for name, value in content.items() if name in _REPORTED}
    NodeMeasurements.model_validate({name: value for name, value in values.items() if name in _MEASURED})
    return _REPORT.validate_python(values | {"file": file})


def find_logs(folder: Path, processes: int) -> list[Path]:
    """Files of the NCCL logs of this node's `processes`, one for each."""
    names = (name for name in list_job_folder(folder, _LISTED_FILES) if name.startswith("nccl."))
    return [folder / name for name in sorted(names)[:processes]]


def read_logs(folder: Path, processes: int) -> list[str]:
    """NCCL logs of this node's `processes`."""
    logs = []
    for file in find_logs(folder, processes):
        with suppress(OSError):  # it is no regular file
            logs.append(read_job_file(file).decode(errors="replace"))
    return logs
