"""The picture of a run: true, whole, escaped, and drawn without an error by a real browser."""

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

from rehearsal.aws.control_models import InstanceTruth
from rehearsal.charts import loss_chart, nice_ticks, phases_chart
from rehearsal.phases import PhaseClock
from rehearsal.report_page import python_name, render, write_page
from rehearsal.timeline import MadeResource, Span, Story, node_lines
from tests.conftest import browser
from tests.metrics import metric
from trainyard.models.events import AgentEvent, NodeEvent, PlayEvent, ServiceEvent
from trainyard.models.report import Billed, LostResource, NotRehearsed, Report, Scaled

NARROW, WIDE = 400, 1400
BROWSER_SECONDS = 120
# Measures the page in a frame of a given width, then writes what it found where --dump-dom shows it.
HARNESS = """<!DOCTYPE html><html><head><link rel="icon" href="data:,"></head><body>
<iframe id="page" style="width:{width}px;height:3000px;border:0"></iframe><pre id="found"></pre><script>
const frame = document.getElementById("page"), found = document.getElementById("found");
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  const size = mark => {{ const box = mark.getBoundingClientRect(); return [box.width, box.height]; }};
  found.textContent = JSON.stringify({{
    title: page.title,
    charts: [...page.querySelectorAll("svg[role=img]")].map(svg => [...svg.querySelectorAll(".mark")].map(size)),
    overflow: root.scrollWidth - root.clientWidth,
    width: root.clientWidth,
    background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    fetched: frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name),
  }});
}};
frame.src = "report.html";
</script></body></html>"""


def a_report(**changes: Any) -> Report:
    whole = {
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
        "billed": (Billed(type="c7i.xlarge", instances=1, seconds=60),),
        "faults": (),
        "phases": {"setup": 2.0, "resources": 8.0, "training": 30.0, "destroy": 3.0},
        "first_loss": 5.5,
        "last_loss": 2.5,
        "steps": 60,
        "checkpoints": ("s3://trainyard-data-0000/runs/20260101-000000-line-0000/checkpoints/step-00000060/",),
        "results_uri": "s3://trainyard-data-0000/runs/20260101-000000-line-0000/results/",
        "objects": {"metrics": 30},
        "scaled": (Scaled(what="EC2 instances", by="folders", why="no virtual machine"),),
        "not_rehearsed": (NotRehearsed(what="the kernel", why="no virtual machine"),),
    }
    return Report.model_validate({**whole, **changes})


def truth(instance: str, launched: float, state: str) -> InstanceTruth:
    return InstanceTruth(
        id=instance,
        region="us-east-1",
        state=state,
        private_ip="127.77.0.2",
        instance_type="c7i.xlarge",
        subnet="subnet-1",
        zone="us-east-1a",
        image="ami-1",
        user_data="",
        role_name=None,
        tags={},
        launch_time=launched,
        autoscaling_group=None,
        lifecycle_state="InService",
    )


def play(time: float, status: str, instance: str = "i-w", boot: str = "0001") -> PlayEvent:
    role = "head" if instance == "i-h" else "worker"
    return PlayEvent.model_validate({"time": time, "instance": instance, "role": role, "boot": boot, "status": status})


def agent(time: float, state: str, attempt: int = 1, boot: str = "0001") -> AgentEvent:
    stamp = {"time": time, "instance": "i-w", "role": "worker", "boot": boot}
    return AgentEvent.model_validate({**stamp, "run": "r", "attempt": attempt, "state": state, "address": "127.0.0.1"})


def service(time: float) -> ServiceEvent:
    stamp = {"time": time, "instance": "i-h", "role": "head", "boot": "0001"}
    return ServiceEvent.model_validate({**stamp, "service": "controller", "address": "127.0.0.1"})


def a_story() -> Story:
    head: list[NodeEvent] = [play(11, "started", "i-h"), service(14), play(15, "ok", "i-h")]
    worker: list[NodeEvent] = [
        play(17, "started"),
        play(20, "ok"),
        agent(21, "ready"),
        agent(22, "workers_up"),
        agent(38, "workers_done"),
    ]
    instances = [truth("i-h", 10, "running"), truth("i-w", 16, "terminated")]
    return Story(
        phases=[
            Span(name="setup", start=8, end=10),
            Span(name="resources", start=10, end=18),
            Span(name="training", start=18, end=48),
            Span(name="destroy", start=48, end=51),
        ],
        nodes=node_lines([*worker, *head], instances, 48),
        metrics=[
            metric(step, 5.5 - step / 20, validation_loss=3.0 if step % 20 == 0 else None) for step in range(1, 61)
        ],
        resources=[
            MadeResource(type="aws:s3/bucket:Bucket", name="data", id="trainyard-data-0000", seconds=0.5, adopted=False)
        ],
    )


def states(lines: Any) -> list[list[tuple[str, float, float]]]:
    return [[(span.name, span.start, span.end) for span in line.spans] for line in lines]


def test_a_nodes_states_follow_one_another_without_a_gap() -> None:
    head, worker = states(a_story().nodes)
    assert head == [("booting", 10, 11), ("configuring", 11, 14), ("serving", 14, 48)]
    assert worker == [
        ("booting", 16, 17),
        ("configuring", 17, 20),
        ("configured", 20, 21),
        ("ready", 21, 22),
        ("working", 22, 38),
        ("done", 38, 38),
    ]


def test_a_play_that_runs_again_under_a_job_leaves_the_job_where_it_was() -> None:
    events: list[NodeEvent] = [play(1, "started"), play(2, "ok"), agent(3, "workers_up"), play(4, "started")]
    (line,) = states(node_lines([*events, play(5, "ok")], [], 9))
    assert [name for name, _, _ in line][-3:] == ["working", "configuring", "working"]


def test_a_second_boot_is_a_line_of_its_own_and_only_it_goes_on() -> None:
    events: list[NodeEvent] = [play(2, "started"), play(6, "started", boot="0002")]
    first, second = states(node_lines(events, [truth("i-w", 1, "running")], 9))
    assert first == [("booting", 1, 2), ("configuring", 2, 2)]
    assert second == [("configuring", 6, 9)]


def test_phases_of_a_launch_lie_where_it_ran() -> None:
    clock = PhaseClock("resources")
    clock.split({"head": 0.0, "bring_up": 0.0})
    clock.enter("training")
    told = clock.done()
    assert list(told) == ["resources", "head", "bring_up", "training"]
    ends = [end for _, end in clock.spans.values()]
    assert ends == sorted(ends)
    assert list(clock.spans) == list(told)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.6218, 5.5668), (0, 302.3), (1, 5000), (3, 3), (0, 0), (-2, 1e-9)])
def test_ticks_enclose_what_they_measure(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 10


def test_a_chart_keeps_within_its_box() -> None:
    chart = loss_chart(a_story().metrics or [])
    assert chart is not None
    places = [float(number) for number in re.split("[ ,]", chart.line)]
    assert len(places) == 2 * 60
    assert min(places) >= 0
    assert max(places) <= 100
    assert [dot.x for dot in chart.held_out] == sorted(dot.x for dot in chart.held_out)
    assert len(chart.held_out) == 3
    phases = phases_chart(a_story().phases)
    assert phases is not None
    assert all(bar.left + bar.width <= 100.01 for row in phases.rows for bar in row.bars)


def test_a_loss_that_is_no_number_is_said_and_not_drawn() -> None:
    chart = loss_chart([metric(1, 5.0), metric(2, math.nan), metric(3, 4.0)])
    assert chart is not None
    assert chart.line.count(",") == 2
    assert "no finite number: 1" in chart.summary
    assert "None of the 1 steps" in render(a_report(), Story(metrics=[metric(1, math.inf)]))


def test_values_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    lost = LostResource(service="ec2", kind=evil, id=evil)
    told = render(a_report(ok=False, errors=(evil,), stack=evil, leaked=(lost,)), a_story())
    assert "<script" not in told
    assert told.count("&lt;script&gt;") >= 4


def test_errors_come_first() -> None:
    told = render(a_report(ok=False, errors=("the volume leaked",)), a_story())
    assert told.index("the volume leaked") < told.index("Time line")
    assert "What went wrong" not in render(a_report(), a_story())


def test_all_that_the_report_names_is_on_the_page() -> None:
    report, story = a_report(images=("ami-0000", "snap-0000")), a_story()
    told = render(report, story)
    names = [
        *report.checkpoints,
        *report.images,
        str(report.results_uri),
        str(report.run),
        "EC2 instances",
        "the kernel",
    ]
    assert [name for name in names if name not in told] == []
    assert python_name(story.resources[0].type) in told


@pytest.mark.parametrize(
    ("story", "words"),
    [
        (Story(), ["No phase was timed", "No node was heard of", "No metric line was read", "None stood"]),
        (Story(metrics=None), ["The job is the user's own"]),
    ],
    ids=["nothing", "own job"],
)
def test_what_a_run_did_not_come_to_is_said_in_words(story: Story, words: list[str]) -> None:
    told = render(a_report(ok=False, run=None, nodes=0, phases={}, first_loss=None, last_loss=None), story)
    text = told.replace("&#39;", "'")
    assert [word for word in words if word not in text] == []
    assert 'role="img"' not in told


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """A folder under a URL on the loopback, and the answers given: `<status> <path>`."""
    answers: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            answers.append(f"{int(code)} {self.path}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path, answers
        server.shutdown()
        thread.join()


def look(served: tuple[str, Path, list[str]], width: int, profile: Path, *, dark: bool = False) -> dict[str, Any]:
    """What the browser made of report.html, and what it said on its console."""
    url, folder, _ = served
    (folder / "harness.html").write_text(HARNESS.format(width=width))
    program = browser()
    assert program is not None, "no chromium: apt-get install chromium"
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    switches += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    switches += [f"--user-data-dir={profile}", f"--window-size={WIDE + 20},3000", "--virtual-time-budget=10000"]
    switches += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [program, *switches, f"{url}/harness.html"], capture_output=True, text=True, timeout=BROWSER_SECONDS
    )
    shutil.rmtree(profile, ignore_errors=True)
    match = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert match, f"the page did not load: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(match[1])
    found["console"] = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return found


@pytest.mark.browser
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_browser_draws_it(served: tuple[str, Path, list[str]], tmp_path: Path, width: int) -> None:
    write_page(a_report(), a_story(), tmp_path)
    found = look(served, width, tmp_path / "profile")
    assert found["console"] == []
    assert served[2] == ["200 /harness.html", "200 /report.html"]
    assert found["fetched"] == []
    assert found["width"] == width
    assert found["overflow"] <= 0
    assert found["title"] == "Rehearsal of local: ok"
    phases, nodes, loss = found["charts"]
    assert (len(phases), len(nodes), len(loss)) == (4, 9, 4)
    assert all(x > 0 and y > 0 for x, y in [*phases, *nodes, *loss])


@pytest.mark.browser
def test_long_values_do_not_widen_a_narrow_page(served: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    long = "x" * 400
    scaled = (Scaled(what=long, by=long, why=long),)
    lost = (LostResource(service="ec2", kind="volume", id=long),)
    write_page(a_report(ok=False, errors=(long,), stack=long, scaled=scaled, leaked=lost), a_story(), tmp_path)
    assert look(served, NARROW, tmp_path / "profile")["overflow"] <= 0


@pytest.mark.browser
def test_the_checks_of_the_browser_see_a_page_that_is_wrong(
    served: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    """An image from elsewhere, a mark without size, a part that is too wide: each is seen."""
    page = write_page(a_report(), a_story(), tmp_path)
    wrong = '<img src="/absent.png"><svg role="img"><rect class="mark"/></svg><div style="width:900px">x</div>'
    page.write_text(page.read_text().replace("<main>", f"<main>{wrong}"))
    found = look(served, NARROW, tmp_path / "profile")
    assert any("Content Security Policy" in line for line in found["console"])
    assert found["overflow"] > 0
    assert [0, 0] in found["charts"][0]


@pytest.mark.browser
def test_it_is_dark_where_the_reader_wants_it_dark(served: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    write_page(a_report(), a_story(), tmp_path)
    light, dark = (
        look(served, WIDE, tmp_path / f"profile-{choice}", dark=choice)["background"] for choice in (False, True)
    )
    assert (light, dark) == ("rgb(251, 251, 249)", "rgb(20, 23, 26)")
