"""Writes report.html: the report with charts, in one file without external resources."""

import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rehearsal.charts import loss_chart, nodes_chart, phases_chart
from rehearsal.recovery import PHASES
from rehearsal.timeline import Timeline
from trainyard.models.report import Report
from trainyard.operations.saved import describe_size

PAGE_FILE = "report.html"
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # independent of the template's file extension
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(report: Report, timeline: Timeline, folder: Path) -> Path:
    """Write report.html to the folder. Returns its path."""
    file = folder / PAGE_FILE
    file.write_text(render_page(report, timeline), encoding="utf-8")
    return file


def render_page(report: Report, timeline: Timeline) -> str:
    """Return the HTML page. Where a chart has no data, the page has a sentence instead."""
    phases = timeline.phases
    start_time = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(phases[0].start)) if phases else ""
    return _TEMPLATES.get_template("report_page.html.j2").render(
        report=report,
        timeline=timeline,
        start_time=start_time,
        wall_seconds=sum(report.phases.values()),
        phases=phases_chart(phases),
        nodes=nodes_chart(timeline.nodes, phases),
        loss=loss_chart(timeline.metrics or ()),
        resources=sorted(timeline.resources, key=lambda resource: -resource.seconds),
        recovery_phases=PHASES,
        python_name=python_name,
        describe_size=describe_size,
    )


def python_name(token: str) -> str:
    """Return a resource type as Pulumi's Python SDK spells it: `aws:s3/bucket:Bucket` is `aws.s3.Bucket`."""
    package, module, name = token.split(":")
    return f"{package}.{module.partition('/')[0]}.{name}"
