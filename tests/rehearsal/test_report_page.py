"""The HTML report: its values, escaping, charts, and rendering in a browser."""

import http.server
import json
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.charts import loss_chart, nice_ticks, phases_chart
from rehearsal.phases import PhaseClock
from rehearsal.report_page import python_name, render_page, write_page
from rehearsal.timeline import CreatedResource, Span, Timeline, node_timelines
from tests.conftest import find_chromium
from tests.metrics import metric
from tests.rehearsal.aws.instances import example_record
from trainyard.models.events import AgentEvent, NodeEvent, PlaybookEvent, ServiceEvent
from trainyard.models.report import Billed, LeakedResource, NotRehearsed, Recovery, Report, Substitution
from trainyard.models.saved import SavedItem

NARROW, WIDE = 400, 1400
BROWSER_SECONDS = 120
# Measures the page in a frame of a given width. --dump-dom then prints the result.
HARNESS = """<!DOCTYPE html><html><head><link rel="icon" href="data:,"></head><body>
<iframe id="page" style="width:{width}px;height:3000px;border:0"></iframe><pre id="result"></pre><script>
const frame = document.getElementById("page"), result = document.getElementById("result");
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  const size = mark => {{ const box = mark.getBoundingClientRect(); return [box.width, box.height]; }};
  result.textContent = JSON.stringify({{
    title: page.title,
    charts: [...page.querySelectorAll("svg[role=img]")].map(svg => [...svg.querySelectorAll(".mark")].map(size)),
    overflow: root.scrollWidth - root.clientWidth,
    width: root.clientWidth,
    background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    fetched: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
  }});
}};
frame.src = "report.html";
</script></body></html>"""


def create_report(**changes: Any) -> Report:
    """Return a report with changed fields."""
    fields = {
        "ok": True,
        "errors": (),
        "stack": "local",
        "backend": "process",
        "engine": "mocks",
        "run": "20260101-000000-line-0000",
        "nodes": 2,
        "processes_per_node": 2,
        "resources_created": 41,
        "resources_deleted": 34,
        "retained": ("aws:s3/bucket:Bucket trainyard-data-0000",),
        "leaked": (),
        "billed": (Billed(type="c7i.xlarge", zone="us-east-1a", purchase_option="on-demand", instances=1, seconds=60),),
        "faults": (),
        "phases": {"setup": 2.0, "resources": 8.0, "training": 30.0, "destroy": 3.0},
        "first_loss": 5.5,
        "last_loss": 2.5,
        "steps": 60,
        "checkpoints": (saved("checkpoints/step-00000060/"),),
        "checkpoints_loaded": True,
        "results": (saved("results/line.json"),),
        "results_uri": "s3://trainyard-data-0000/runs/20260101-000000-line-0000/results/",
        "objects": {"metrics": 30},
        "substitutions": (Substitution(original="EC2 instances", replacement="folders", reason="no virtual machine"),),
        "not_rehearsed": (NotRehearsed(subject="the kernel", reason="no virtual machine"),),
    }
    return Report.model_validate({**fields, **changes})


def saved(key: str) -> SavedItem:
    """Return a checkpoint or a result of the run."""
    uri = f"s3://trainyard-data-0000/runs/20260101-000000-line-0000/{key}"
    return SavedItem(
        name=uri.rstrip("/").rpartition("/")[2], uri=uri, size_bytes=1500, files=3, modified=1.0, archived=False
    )


def playbook_event(time: float, status: str, instance: str = "i-w", boot: str = "0001") -> PlaybookEvent:
    """Return an event of a playbook run on the worker i-w or the head i-h."""
    role = "head" if instance == "i-h" else "worker"
    return PlaybookEvent.model_validate(
        {"time": time, "instance": instance, "role": role, "boot": boot, "status": status}
    )


def agent_event(time: float, state: str, attempt: int = 1, boot: str = "0001") -> AgentEvent:
    """Return an event of the agent of the worker i-w."""
    fields = {"time": time, "instance": "i-w", "role": "worker", "boot": boot}
    return AgentEvent.model_validate({**fields, "run": "r", "attempt": attempt, "state": state, "address": "127.0.0.1"})


def service_event(time: float) -> ServiceEvent:
    """Return an event of the controller of the head i-h."""
    fields = {"time": time, "instance": "i-h", "role": "head", "boot": "0001"}
    return ServiceEvent.model_validate({**fields, "service": "controller", "address": "127.0.0.1"})


def create_timeline() -> Timeline:
    """Return a timeline of two nodes and 60 steps."""
    head: list[NodeEvent] = [playbook_event(11, "started", "i-h"), service_event(14), playbook_event(15, "ok", "i-h")]
    worker: list[NodeEvent] = [
        playbook_event(17, "started"),
        playbook_event(20, "ok"),
        agent_event(21, "ready"),
        agent_event(22, "workers_up"),
        agent_event(38, "workers_done"),
    ]
    instances = [
        example_record(id="i-h", launch_time=10, state="running"),
        example_record(id="i-w", launch_time=16, state="terminated"),
    ]
    return Timeline(
        phases=[
            Span(name="setup", start=8, end=10),
            Span(name="resources", start=10, end=18),
            Span(name="training", start=18, end=48),
            Span(name="destroy", start=48, end=51),
        ],
        nodes=node_timelines([*worker, *head], instances, 48),
        metrics=[
            metric(step, 5.5 - step / 20, validation_loss=3.0 if step % 20 == 0 else None) for step in range(1, 61)
        ],
        resources=[
            CreatedResource(
                type="aws:s3/bucket:Bucket", name="data", id="trainyard-data-0000", seconds=0.5, imported=False
            )
        ],
    )


def states(timelines: Any) -> list[list[tuple[str, float, float]]]:
    """Return name, start and end of each span of each node timeline."""
    return [[(span.name, span.start, span.end) for span in timeline.spans] for timeline in timelines]


def test_states_of_a_node_have_no_gaps() -> None:
    head, worker = states(create_timeline().nodes)
    assert head == [("booting", 10, 11), ("configuring", 11, 14), ("serving", 14, 48)]
    assert worker == [
        ("booting", 16, 17),
        ("configuring", 17, 20),
        ("configured", 20, 21),
        ("ready", 21, 22),
        ("working", 22, 38),
        ("done", 38, 38),
    ]


def test_state_returns_to_working_after_a_playbook_run_during_the_job() -> None:
    events: list[NodeEvent] = [
        playbook_event(1, "started"),
        playbook_event(2, "ok"),
        agent_event(3, "workers_up"),
        playbook_event(4, "started"),
    ]
    (spans,) = states(node_timelines([*events, playbook_event(5, "ok")], [], 9))
    assert [name for name, _, _ in spans][-3:] == ["working", "configuring", "working"]


def test_each_boot_has_a_timeline_and_only_the_last_continues() -> None:
    events: list[NodeEvent] = [playbook_event(2, "started"), playbook_event(6, "started", boot="0002")]
    first, second = states(node_timelines(events, [example_record(id="i-w", launch_time=1, state="running")], 9))
    assert first == [("booting", 1, 2), ("configuring", 2, 2)]
    assert second == [("configuring", 6, 9)]


def test_phases_of_a_launch_are_in_chronological_order() -> None:
    clock = PhaseClock("resources")
    clock.split({"head": 0.0, "startup": 0.0})
    clock.start("training")
    phases = clock.finish()
    assert list(phases) == ["resources", "head", "startup", "training"]
    ends = [end for _, end in clock.spans.values()]
    assert ends == sorted(ends)
    assert list(clock.spans) == list(phases)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.6218, 5.5668), (0, 302.3), (1, 5000), (3, 3), (0, 0), (-2, 1e-9)])
def test_ticks_enclose_the_range(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 10


def test_charts_stay_within_their_box() -> None:
    chart = loss_chart(create_timeline().metrics or [])
    assert chart is not None
    coordinates = [float(number) for number in re.split("[ ,]", chart.line)]
    assert len(coordinates) == 2 * 60
    assert min(coordinates) >= 0
    assert max(coordinates) <= 100
    assert [dot.x for dot in chart.validation] == sorted(dot.x for dot in chart.validation)
    assert len(chart.validation) == 3
    phases = phases_chart(create_timeline().phases)
    assert phases is not None
    assert all(bar.x + bar.width <= 100.01 for row in phases.rows for bar in row.bars)


def test_loss_that_is_not_finite_is_omitted_and_reported() -> None:
    chart = loss_chart([metric(1, 5.0), metric(2, math.nan), metric(3, 4.0)])
    assert chart is not None
    assert chart.line.count(",") == 2
    assert "not finite: 1" in chart.summary
    assert "None of the 1 steps" in render_page(create_report(), Timeline(metrics=[metric(1, math.inf)]))


def test_values_are_escaped() -> None:
    script = "<script>alert(1)</script>"
    leak = LeakedResource(service="ec2", kind=script, id=script)
    html = render_page(create_report(ok=False, errors=(script,), stack=script, leaked=(leak,)), create_timeline())
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 4


def test_errors_are_at_the_top() -> None:
    html = render_page(create_report(ok=False, errors=("the volume leaked",)), create_timeline())
    assert html.index("the volume leaked") < html.index("Timeline")
    assert '<h2 id="errors">' not in render_page(create_report(), create_timeline())


def test_page_has_all_values_of_the_report() -> None:
    report, timeline = create_report(images=("ami-0000", "snap-0000")), create_timeline()
    html = render_page(report, timeline)
    names = [
        *(item.uri for item in (*report.checkpoints, *report.results)),
        "1.5 kB in 3 files",
        *report.images,
        str(report.results_uri),
        str(report.run),
        "EC2 instances",
        "the kernel",
    ]
    assert [name for name in names if name not in html] == []
    assert python_name(timeline.resources[0].type) in html


def test_page_has_the_recovery_from_each_fault() -> None:
    common = {"kind": "rank-kill", "time": 1.0, "nodes": ("i-1",)}
    ended = Recovery(fault="rank-kill,rank=3", attempt=1, next_step_seconds=12.34, repeated_steps=7, **common)
    continued = Recovery(fault="agent-kill,node=1", attempt=None, longest_step_seconds=0.5, **common)
    report = create_report(faults=("rank-kill,rank=3", "agent-kill,node=1"), recoveries=(ended, continued))
    html = render_page(report, create_timeline())
    assert '<td class="number">12.3</td><td class="number">-</td><td class="number">7</td>' in html
    assert "the job continued, longest step 0.5 s" in html


def test_checkpoints_of_a_custom_job_are_not_described_as_loaded() -> None:
    html = render_page(create_report(checkpoints_loaded=False), create_timeline())
    assert "<caption>Checkpoints</caption>" in html
    assert "each loaded once" in render_page(create_report(), create_timeline())


@pytest.mark.parametrize(
    ("timeline", "sentences"),
    [
        (
            Timeline(),
            [
                "No phases were measured",
                "No node wrote an event",
                "The run wrote no metric lines",
                "No resource existed",
            ],
        ),
        (Timeline(metrics=None), ["The job is a custom job"]),
    ],
    ids=["nothing", "custom job"],
)
def test_page_has_sentences_instead_of_missing_charts(timeline: Timeline, sentences: list[str]) -> None:
    html = render_page(create_report(ok=False, run=None, nodes=0, phases={}, first_loss=None, last_loss=None), timeline)
    text = html.replace("&#39;", "'")
    assert [sentence for sentence in sentences if sentence not in text] == []
    assert 'role="img"' not in html


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """URL of an HTTP server on the loopback address, its folder, and its responses: `<status> <path>`."""
    responses: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            responses.append(f"{int(code)} {self.path}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path, responses
        server.shutdown()
        thread.join()


def measure_page(
    served: tuple[str, Path, list[str]], width: int, profile: Path, *, dark: bool = False
) -> dict[str, Any]:
    """Return the measurements of report.html in a browser, and the browser's console messages."""
    url, folder, _ = served
    (folder / "harness.html").write_text(HARNESS.format(width=width))
    program = find_chromium()
    assert program is not None, "no chromium: apt-get install chromium"
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    switches += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    switches += [f"--user-data-dir={profile}", f"--window-size={WIDE + 20},3000", "--virtual-time-budget=10000"]
    switches += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr", "--dump-dom"]
    process = subprocess.run(
        [program, *switches, f"{url}/harness.html"], capture_output=True, text=True, timeout=BROWSER_SECONDS
    )
    shutil.rmtree(profile, ignore_errors=True)
    match = re.search(r'<pre id="result">(.+?)</pre>', process.stdout, re.DOTALL)
    assert match, f"the page did not load: {process.stderr[-2000:]}"
    result: dict[str, Any] = json.loads(match[1])
    result["console"] = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    return result


@pytest.mark.browser
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_browser_renders_the_page(served: tuple[str, Path, list[str]], tmp_path: Path, width: int) -> None:
    write_page(create_report(), create_timeline(), tmp_path)
    result = measure_page(served, width, tmp_path / "profile")
    assert result["console"] == []
    assert served[2] == ["200 /harness.html", "200 /report.html"]
    assert result["fetched"] == []
    assert result["width"] == width
    assert result["overflow"] <= 0
    assert result["title"] == "Rehearsal of local: ok"
    phases, nodes, loss = result["charts"]
    assert (len(phases), len(nodes), len(loss)) == (4, 9, 4)
    assert all(x > 0 and y > 0 for x, y in [*phases, *nodes, *loss])


@pytest.mark.browser
def test_long_values_do_not_widen_a_narrow_page(served: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    long = "x" * 400
    substitutions = (Substitution(original=long, replacement=long, reason=long),)
    leaks = (LeakedResource(service="ec2", kind="volume", id=long),)
    write_page(
        create_report(ok=False, errors=(long,), stack=long, substitutions=substitutions, leaked=leaks),
        create_timeline(),
        tmp_path,
    )
    assert measure_page(served, NARROW, tmp_path / "profile")["overflow"] <= 0


@pytest.mark.browser
def test_measurements_detect_a_broken_page(served: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    """They detect an external image, a mark without size, and an element that is too wide."""
    page = write_page(create_report(), create_timeline(), tmp_path)
    broken = '<img src="/absent.png"><svg role="img"><rect class="mark"/></svg><div style="width:900px">x</div>'
    page.write_text(page.read_text().replace("<main>", f"<main>{broken}"))
    result = measure_page(served, NARROW, tmp_path / "profile")
    assert any("Content Security Policy" in line for line in result["console"])
    assert result["overflow"] > 0
    assert [0, 0] in result["charts"][0]


@pytest.mark.browser
def test_page_uses_the_preferred_color_scheme(served: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    write_page(create_report(), create_timeline(), tmp_path)
    light, dark = (
        measure_page(served, WIDE, tmp_path / f"profile-{is_dark}", dark=is_dark)["background"]
        for is_dark in (False, True)
    )
    assert (light, dark) == ("rgb(251, 251, 249)", "rgb(20, 23, 26)")
