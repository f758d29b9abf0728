"""A picture of the run: report.html, one page that needs nothing beside itself."""

import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rehearsal.charts import loss_chart, nodes_chart, phases_chart
from rehearsal.timeline import Story
from trainyard.models.report import Report

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # whatever the template's name ends in
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(report: Report, story: Story, folder: Path) -> Path:
    """Write `report.html` into the folder."""
    file = folder / "report.html"
    file.write_text(render(report, story), encoding="utf-8")
    return file


def render(report: Report, story: Story) -> str:
    """The page. What a run did not come to is said in words where its chart would stand."""
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(story.phases[0].start)) if story.phases else ""
    return _TEMPLATES.get_template("report_page.html.j2").render(
        report=report,
        story=story,
        began=began,
        wall=sum(report.phases.values()),
        phases=phases_chart(story.phases),
        nodes=nodes_chart(story.nodes, story.phases),
        loss=loss_chart(story.metrics or ()),
        resources=sorted(story.resources, key=lambda one: -one.seconds),
        python_name=python_name,
    )


def python_name(token: str) -> str:
    """A type as the program spells it: `aws:s3/bucket:Bucket` is `aws.s3.Bucket`."""
    package, module, name = token.split(":")
    return f"{package}.{module.partition('/')[0]}.{name}"
