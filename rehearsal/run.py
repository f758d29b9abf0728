"""One rehearsal, top to bottom: the program, the nodes, the job, its results, destroy, and the account's truth."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from contract.base import InputError, Problem
from contract.layout import RunLayout
from contract.objects import Bucket
from contract.report import LostResource, NotRehearsed, Report, Scaled
from contract.run import LaunchResult
from contract.settings import CONFIG_KEY, StackSettings, read_settings
from rehearsal import audit
from rehearsal.adapter.graph import Deployment, Event
from rehearsal.adapter.mocks import UpFailed, up
from rehearsal.adapter.session import ACCESS_KEY as ADAPTER_KEY
from rehearsal.adapter.teardown import DestroyFailed, destroy
from rehearsal.aws.process import EmulatedAws
from rehearsal.follow import FollowError, follow, log_tails, skipped_roles, until
from rehearsal.hypervisor.hypervisor import Hypervisor, mine
from rehearsal.hypervisor.process import ProcessBackend, sweep
from rehearsal.hypervisor.processes import marked
from rehearsal.locks import address_block, stack_lock
from rehearsal.phases import PhaseClock
from rehearsal.scaling import scale
from rehearsal.show import Show
from rehearsal.story import Span, Story, tell

ROOT = Path(__file__).resolve().parents[1]
OUTCOME_SECONDS = 1800.0
NODES_GONE_SECONDS = 120.0
RESULTS_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user asks of a rehearsal."""

    stack: str
    nodes: int | None = None
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        return self.root / "build" / "rehearsal" / self.stack


def read_stack(options: Options) -> tuple[dict[str, Any], StackSettings, list[Scaled]]:
    """The stack file's config with its settings scaled to this machine. Raises InputError before anything is made."""
    file = options.root / "stacks" / f"Pulumi.{options.stack}.yaml"
    if not file.is_file():
        have = ", ".join(sorted(one.name[7:-5] for one in file.parent.glob("Pulumi.*.yaml")))
        why = f"no such file: stacks/{file.name}"
        raise InputError([Problem(key="--stack", value=options.stack, why=why, fix=f"Choose one of {have}")])
    try:
        config = (yaml.safe_load(file.read_text()) or {}).get("config") or {}
    except (yaml.YAMLError, AttributeError) as error:
        why = f"not a Pulumi stack file: {error}"
        raise InputError([Problem(key=str(file), value="...", why=why, fix="Mend its YAML")]) from None
    source = f"stacks/{file.name}"
    read_settings(config.get(CONFIG_KEY), options.root, source)
    settings, changes = scale(config[CONFIG_KEY], options.nodes)
    return {**config, CONFIG_KEY: settings}, read_settings(settings, options.root, source), changes


@dataclass
class Findings:
    """What the report will say, filled in as the run goes along."""

    errors: list[str] = field(default_factory=list)
    run: str | None = None
    nodes: int = 0
    created: int = 0
    deleted: int = 0
    retained: tuple[str, ...] = ()
    leaked: tuple[LostResource, ...] = ()
    losses: audit.Losses | None = None
    checkpoints: tuple[str, ...] = ()
    results_uri: str | None = None
    objects: dict[str, int] = field(default_factory=dict)
    scaled: list[Scaled] = field(default_factory=list)
    not_rehearsed: list[NotRehearsed] = field(default_factory=list)
    story: Story = field(default_factory=Story)


def rehearse(options: Options, show: Show) -> tuple[Report, Story]:
    """Run the whole road: its report, and what the page tells beside it.

    Raises InputError for what the user can mend, before anything is made.
    """
    clock = PhaseClock("setup")
    config, settings, scaled = read_stack(options)
    found = Findings(scaled=scaled)
    with ExitStack() as stack:
        account = given_account()
        stack.enter_context(stack_lock(options.folder, options.stack))
        prepare_folder(options.folder, show)
        addresses = stack.enter_context(address_block())
        region = str(config.get("aws:region", "us-east-1"))
        aws = stack.enter_context(account or EmulatedAws.start(options.folder / "aws", addresses, region))
        stack.enter_context(environment(aws.environment()))
        Rehearsal(options, config, settings, aws, show, clock, found).go()
    running = len(marked(options.folder))
    found.errors += audit.still_running(list, running)
    report = Report(
        ok=not found.errors,
        errors=tuple(found.errors),
        stack=options.stack,
        backend="process",
        engine="mocks",
        run=found.run,
        nodes=found.nodes,
        processes_per_node=settings.processes_per_node if found.nodes else 0,
        resources_created=found.created,
        resources_deleted=found.deleted,
        retained=found.retained,
        leaked=found.leaked,
        phases=clock.done(),
        first_loss=found.losses.first if found.losses else None,
        last_loss=found.losses.last if found.losses else None,
        steps=found.losses.steps if found.losses else None,
        checkpoints=found.checkpoints,
        results_uri=found.results_uri,
        objects=found.objects,
        scaled=tuple(found.scaled),
        not_rehearsed=tuple(found.not_rehearsed),
    )
    found.story.phases = [Span(name=name, start=start, end=end) for name, (start, end) in clock.spans.items()]
    return report, found.story


def prepare_folder(folder: Path, show: Show) -> None:
    """An empty folder, after an earlier rehearsal in it is swept up, whatever way it ended."""
    if ended := sweep(folder):
        show.line("setup", f"ended {ended} processes that an earlier rehearsal left")
    for name in ("aws", "results", "report.json", "report.html"):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def given_account() -> EmulatedAws | None:
    """The emulated AWS that the environment names, as everything of ours finds it; None where it names none."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None:
        return None
    try:
        return EmulatedAws.attach(endpoint)
    except ValueError as error:
        problem = Problem(
            key="AWS_ENDPOINT_URL",
            value=endpoint,
            why=str(error),
            fix="Start one with `python -m rehearsal aws`, or unset it: the rehearsal then has an account of its own",
        )
        raise InputError([problem]) from None


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """The account that everything started from here finds; nothing of the user's own AWS settings counts."""
    earlier = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(values)
    os.environ["VIRTUAL_ENV"] = sys.prefix  # the launcher takes the Python that runs the rehearsal
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(earlier)


class Rehearsal:
    """The phases, in their order, on a running emulated AWS."""

    def __init__(
        self,
        options: Options,
        config: dict[str, Any],
        settings: StackSettings,
        aws: EmulatedAws,
        show: Show,
        clock: PhaseClock,
        found: Findings,
    ) -> None:
        self.options, self.config, self.settings = options, config, settings
        self.aws, self.show, self.clock, self.found = aws, show, clock, found
        self.folder = options.folder
        self.backend = ProcessBackend(self.folder)
        self.deployment: Deployment | None = None
        self.made: dict[str, str] = {}
        self.kept: set[str] = set()

    def go(self) -> None:
        before = self.aws.dump()
        stack = self.options.stack
        with Hypervisor(self.aws, self.backend, stack, lambda text: self.show.line("nodes", text)) as hypervisor:
            try:
                self.bring_up()
                self.train(hypervisor)
                self.bring_home()
            except (UpFailed, FollowError, RuntimeError) as error:
                # What the launch wrote was shown as it came: its last word is the error.
                told = str(error)
                self.fail(told[max(0, told.rfind("trainyard: ")) :])
                if isinstance(error, UpFailed):
                    self.deployment = error.deployment
                    if tails := log_tails(self.folder):
                        (self.folder / "node-logs.txt").write_text(tails)
                        self.show.line("logs", f"of the nodes: {self.folder / 'node-logs.txt'}")
            finally:
                self.take_down(hypervisor)
        self.examine(before)

    def fail(self, message: str) -> None:
        self.found.errors.append(message)
        self.show.line("failed", message)

    def bring_up(self) -> None:
        """Preview, then resources and launch, as `pulumi up` does."""
        self.clock.enter("preview")
        planned = up(self.config, self.options.stack, self.options.root, preview=True)
        count = sum(resource.custom for resource in planned.resources.values())
        self.show.line("preview", f"{count} resources to make")
        self.clock.enter("resources")
        self.deployment = up(self.config, self.options.stack, self.options.root, on_event=self.tell)
        launched = LaunchResult.model_validate_json(self.deployment.exports["launch"].splitlines()[-1])
        self.clock.split(launched.phases)
        self.found.run, self.found.nodes = launched.run, len(launched.nodes)

    def tell(self, event: Event) -> None:
        match event.kind:
            case "line":
                self.show.line(event.name, event.text)
            case "creating" | "deleting":
                self.show.detail("resources", f"{event.kind} {event.type} {event.name}")
            case "failed":
                self.show.line("resources", f"failed: {event.text.splitlines()[0]}")
            case _:
                self.show.detail("resources", f"{event.kind} {event.type} {event.name}, {event.seconds:.1f} s")

    def data(self) -> Bucket:
        assert self.deployment is not None
        return Bucket(self.deployment.exports["data_bucket"], self.aws.region)

    def train(self, hypervisor: Hypervisor) -> None:
        """Until the controller has ended the run and the workers are gone."""
        self.clock.enter("training")
        assert self.found.run is not None
        outcome = follow(
            self.data(),
            self.found.run,
            seconds=OUTCOME_SECONDS,
            failure=lambda: hypervisor.failure,
            say=lambda text: self.show.line("job", text),
        )
        self.show.line("job", f"{outcome.state}: {outcome.reason}")
        if outcome.state != "succeeded":
            trace = f"\n{outcome.failure.traceback}" if outcome.failure else ""
            self.fail(f"the job {outcome.state}: {outcome.reason}{trace}")
        until("the end of the workers", lambda: not self.workers(), NODES_GONE_SECONDS)

    def workers(self) -> list[str]:
        """Worker instances that EC2 says are running."""
        groups = self.deployment.exports["groups"] if self.deployment else []
        return [one.id for one in self.aws.instances() if one.autoscaling_group in groups and one.state == "running"]

    def bring_home(self) -> None:
        """Results by the operator's own command; figures from S3; each checkpoint loaded."""
        self.clock.enter("results")
        run, data = self.found.run, self.data()
        assert run is not None
        fetched = self.fetch_results(run)
        self.found.results_uri = fetched["results_uri"]
        self.found.checkpoints = tuple(fetched["checkpoints"])
        self.found.objects = dict(
            Counter(key.removeprefix(RunLayout(run).prefix).split("/")[0] for key in data.keys(RunLayout(run).prefix))
        )
        if self.settings.job.train is not None and not self.found.errors:
            self.found.losses = audit.read_losses(data, run)
            self.found.errors += audit.check_results(data, run, self.found.losses)
            self.found.errors += audit.check_checkpoints(self.found.checkpoints, {"AWS_REGION": self.aws.region})

    def fetch_results(self, run: str) -> dict[str, Any]:
        folder = self.folder / "results"
        command = [sys.executable, "-m", "trainyard", "results", "--stack", self.options.stack, "--run", run]
        done = subprocess.run(
            [*command, "--to", str(folder), "--json"],
            cwd=self.options.root,
            capture_output=True,
            text=True,
            timeout=RESULTS_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"trainyard results failed: {done.stderr.strip()}")
        fetched: dict[str, Any] = json.loads(done.stdout)
        self.show.line("results", f"{len(fetched['files'])} files in {folder}")
        return fetched

    def take_down(self, hypervisor: Hypervisor) -> None:
        """`pulumi destroy`: also after a failure, of whatever was made."""
        self.clock.enter("destroy")
        deployment = self.deployment
        if deployment is None:
            return
        self.count_made(deployment)
        self.note_limits(deployment)
        self.note_story(deployment)
        try:
            gone = destroy(deployment, on_event=self.tell)
        except DestroyFailed as error:
            self.fail(f"destroy failed: {error}")
            return
        self.found.deleted = sum(resource.type.startswith("aws:") for resource in gone.deleted)
        # A retained object goes all the same with a bucket that does not stay: ids begin with the bucket's name.
        there = {one.id for one in self.aws.dump()}
        kept = [one for one in gone.retained if one.id.split("/")[0] in there]
        self.found.retained = tuple(f"{one.type} {one.id}" for one in kept)
        self.kept = {one.id for one in kept}
        try:
            until("the end of every instance", lambda: not hypervisor.running(), NODES_GONE_SECONDS)
        except FollowError as error:
            self.fail(str(error))
        self.show.line("destroy", f"{len(gone.deleted)} resources deleted, {len(kept)} retained")

    def count_made(self, deployment: Deployment) -> None:
        own = [one for one in deployment.standing if one.type.startswith("aws:") and not one.adopted]
        self.found.created = len(own)
        self.made = {one.urn: f"{one.type} {one.name}" for one in own}

    def note_limits(self, deployment: Deployment) -> None:
        """What stood in for something, from what happened on the nodes."""
        self.found.scaled += self.backend.scaled()
        self.found.not_rehearsed += self.backend.not_rehearsed()
        buckets = [deployment.exports.get(name) for name in ("data_bucket", "staging_bucket")]
        if all(buckets):
            data, staging = (Bucket(str(name), self.aws.region) for name in buckets)
            self.found.not_rehearsed += skipped_roles(data, staging, self.found.run)

    def note_story(self, deployment: Deployment) -> None:
        """While its buckets are there. Nothing that is wrong with it stands in the way of destroy."""
        trainer = self.settings.job.train is not None
        try:
            tell(self.found.story, deployment, self.aws.instances(), self.aws.region, time.time(), trainer=trainer)
        except Exception as error:  # of any kind: what was made must go
            self.fail(f"the nodes' events and metrics can't be read: {error!r}")

    def examine(self, before: list[Any]) -> None:
        """The account after destroy against the account before."""
        self.clock.enter("audit")
        running = [one.id for one in mine(self.aws.instances(), self.options.stack) if one.state != "terminated"]
        self.found.errors += audit.still_running(lambda: running, 0)
        self.found.leaked = tuple(audit.leaked(before, self.aws.dump(), self.kept))
        self.found.errors += [f"leaked: {one.service} {one.kind} {one.id}" for one in self.found.leaked]
        self.found.errors += audit.check_journal(self.made, self.aws.journal(), ADAPTER_KEY)
