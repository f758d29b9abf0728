"""One rehearsal, top to bottom: the program, the nodes, the job, its results, destroy, and the account's truth."""

import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from contract.base import InputError
from contract.layout import RunLayout
from contract.objects import Bucket
from contract.report import Billed, LostResource, NotRehearsed, Report, Scaled
from contract.run import LaunchResult
from contract.settings import StackSettings
from rehearsal import audit
from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment, Event
from rehearsal.adapter.mocks import UpFailed, up
from rehearsal.adapter.session import ACCESS_KEY as ADAPTER_KEY
from rehearsal.adapter.teardown import Destroyed, DestroyFailed, destroy
from rehearsal.aws.billing import billed_by_type
from rehearsal.aws.process import EmulatedAws
from rehearsal.faults import spec_of
from rehearsal.follow import FollowError, follow, log_tails, skipped_roles, until
from rehearsal.ground import Options, empty, environment, given_account, marking, prepare_folder, read_stack
from rehearsal.hypervisor.hypervisor import Hypervisor, mine
from rehearsal.hypervisor.process import ProcessBackend
from rehearsal.hypervisor.processes import marked
from rehearsal.interrupts import Interrupts
from rehearsal.locks import address_block, stack_lock
from rehearsal.phases import PhaseClock
from rehearsal.preflight import check_machine
from rehearsal.reserve import Reserve
from rehearsal.show import Show
from rehearsal.story import Span, Story, tell

INTERRUPTED = "interrupted: what was made goes now"
OUTCOME_SECONDS = 1800.0
NODES_GONE_SECONDS = 120.0
RESULTS_SECONDS = 300
NOT_EMULATED = [
    NotRehearsed(what="the operator's own rights (IAM)", why="only calls of roles are judged by their policies"),
    NotRehearsed(what="AWS's delays, quotas and throttling", why="the emulated AWS answers at once"),
]


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
    billed: tuple[Billed, ...] = ()
    faults: tuple[str, ...] = ()
    losses: audit.Losses | None = None
    checkpoints: tuple[str, ...] = ()
    results_uri: str | None = None
    objects: dict[str, int] = field(default_factory=dict)
    scaled: list[Scaled] = field(default_factory=list)
    not_rehearsed: list[NotRehearsed] = field(default_factory=list)
    story: Story = field(default_factory=Story)


def rehearse(options: Options, show: Show, interrupts: Interrupts) -> tuple[Report, Story]:
    """Run the whole road: its report, and what the page tells beside it.

    Raises InputError for what the user can mend, before anything is made.
    """
    clock = PhaseClock("account")
    config, settings, scaled = read_stack(options)
    found = Findings(scaled=scaled)
    with ExitStack() as stack:
        account = given_account()
        check_machine(options.folder, options.root, settings)
        addresses = stack.enter_context(address_block())
        cut = stack.enter_context(stack_lock(options.folder, options.stack))
        interrupts.keep(f"interrupted again, cut: the next rehearsal of {options.stack} sweeps up what is left")
        try:
            with interrupts.raised():
                prepare_folder(options.folder, show, cut)
                reserve = stack.enter_context(Reserve(options.folder))
                stack.enter_context(marking(options.folder))
                region = str(config.get("aws:region", "us-east-1"))
                aws = stack.enter_context(account or EmulatedAws.start(options.folder / "aws", addresses, region))
                stack.enter_context(environment(aws.environment()))
            Rehearsal(options, config, settings, aws, show, clock, found, interrupts, reserve).go()
        except KeyboardInterrupt:
            show.line("failed", INTERRUPTED)
        except InputError:
            empty(options.folder)  # the program's look-ups needed an account
            raise
    if interrupts.seen:
        found.errors.insert(0, INTERRUPTED)
    if left := marked(options.folder):
        found.errors.append(f"processes still run: {[process.pid for process in left]}")
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
        billed=found.billed,
        faults=found.faults,
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
        interrupts: Interrupts,
        reserve: Reserve,
    ) -> None:
        self.options, self.config, self.settings = options, config, settings
        self.aws, self.show, self.clock, self.found = aws, show, clock, found
        self.interrupts, self.reserve, self.folder = interrupts, reserve, options.folder
        self.backend = ProcessBackend(self.folder)
        self.deployment: Deployment | None = None
        self.made: dict[str, str] = {}
        self.kept: set[str] = set()
        self.previewed = False

    def go(self) -> None:
        """Whatever breaks on the way ends as an error of the report, never as a report that is not there.

        Raises InputError for what only the program's look-ups can tell, when nothing is made yet.
        """
        before, earlier = self.aws.dump(), {one.id for one in self.aws.instances()}
        self.aws.inject(*self.options.faults)
        self.found.faults = tuple(spec_of(fault) for fault in self.aws.faults())
        for spec in self.found.faults:
            self.show.line("fault", spec)
        account = Adapter(self.aws.region)

        def broken(text: str) -> None:
            self.show.line("nodes", text)
            account.stop()  # a launch would wait for nodes that nobody boots

        with Hypervisor(self.aws, self.backend, self.options.stack, broken) as hypervisor:
            try:
                with self.interrupts.raised():
                    self.bring_up(account)
                    self.train(hypervisor)
                    self.bring_home()
            except KeyboardInterrupt:
                self.show.line("failed", INTERRUPTED)
            except UpFailed as error:
                # What the launch wrote was shown as it came: its last word is the error.
                told = str(error)
                self.fail(hypervisor.failure or told[max(0, told.rfind("trainyard: ")) :])
                self.keep_node_logs()
            except Exception as error:
                if isinstance(error, InputError) and not self.previewed:
                    raise
                known = isinstance(error, FollowError | RuntimeError | InputError)
                self.fail(str(error) if known else f"{type(error).__name__}: {error}")
                self.keep_node_logs()
            finally:
                self.take_down(hypervisor)
        try:
            self.examine(before, earlier)
        except Exception as error:
            self.fail(f"the account can't be looked at: {type(error).__name__}: {error}")

    def keep_node_logs(self) -> None:
        if tails := log_tails(self.folder):
            try:
                (self.folder / "node-logs.txt").write_text(tails)
            except OSError as error:
                self.fail(f"the nodes' logs can't be kept: {error}")
                return
            self.show.line("logs", f"of the nodes: {self.folder / 'node-logs.txt'}")

    def fail(self, message: str) -> None:
        if self.reserve.gives_way():
            message = f"the disk is full: make room for {self.folder} and run it again. It was seen by this: {message}"
        self.found.errors.append(message)
        self.show.line("failed", message)

    def bring_up(self, account: Adapter) -> None:
        """Preview, then resources and launch, as `pulumi up` does."""
        self.clock.enter("preview")
        planned = up(self.config, self.options.stack, self.options.root, preview=True, account=account)
        own = [one for one in planned.resources.values() if one.custom and one.type.startswith("aws:")]
        self.show.line("preview", f"{len(own)} AWS resources to make")
        self.previewed = True
        self.clock.enter("resources")
        deployment = up(
            self.config, self.options.stack, self.options.root, account=account, on_event=self.tell, begun=self.begun
        )
        launched = LaunchResult.model_validate_json(deployment.exports["launch"].splitlines()[-1])
        self.clock.split(launched.phases)
        self.found.run, self.found.nodes = launched.run, len(launched.nodes)

    def begun(self, deployment: Deployment) -> None:
        self.deployment = deployment  # whatever cuts the way from here on: destroy takes it down

    def tell(self, event: Event) -> None:
        match event.kind:
            case "line":
                self.show.line(event.name, event.text)
            case "creating" | "deleting":
                self.show.detail("resources", f"{event.kind} {event.type} {event.name}")
            case "adopted":
                self.show.line("resources", f"adopted {event.type} {event.name} of an earlier up")
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
            unfit = audit.check_checkpoints(self.found.checkpoints, {"AWS_REGION": self.aws.region})
            count = len(self.found.checkpoints)
            self.show.line("results", f"{count - len(unfit)} of {count} checkpoints load in a fresh process")
            for problem in [*audit.check_results(data, run, self.found.losses), *unfit]:
                self.fail(problem)

    def fetch_results(self, run: str) -> dict[str, Any]:
        """Results and logs by the operator's own commands."""
        folder, logs = self.folder / "results", self.folder / "logs.txt"
        fetched: dict[str, Any] = json.loads(self.operate("results", "--run", run, "--to", str(folder), "--json"))
        logs.write_text(self.operate("logs", "--run", run, "--source", "."))
        self.show.line(
            "results", f"{len(fetched['files'])} files in {folder}, what the ranks wrote in {logs.name} beside"
        )
        return fetched

    def operate(self, command: str, *words: str) -> str:
        """Run `trainyard` as the operator does; its stdout. Raises RuntimeError with its message when it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "trainyard", command, "--stack", self.options.stack, *words],
            cwd=self.options.root,
            capture_output=True,
            text=True,
            timeout=RESULTS_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"trainyard {command} failed: {done.stderr.strip()}")
        return done.stdout

    def take_down(self, hypervisor: Hypervisor) -> None:
        """`pulumi destroy`: also after a failure, of whatever was made."""
        self.clock.enter("destroy")
        self.end_faults()
        deployment = self.deployment
        if deployment is None:
            return
        self.count_made(deployment)
        self.note_limits(deployment)
        self.note_story(deployment)
        try:
            gone = self.destroyed(deployment)
        except DestroyFailed as error:
            self.fail(f"destroy failed: {error}")
            return
        # A retained object goes all the same with a bucket that does not stay: ids begin with the bucket's name.
        there = {one.id for one in self.aws.dump()}
        kept = [one for one in gone.retained if one.id.split("/")[0] in there]
        self.found.retained = tuple(f"{one.type} {one.id}" for one in kept)
        self.kept = {one.id for one in kept}
        own = [one for one in (*gone.deleted, *gone.retained) if one.type.startswith("aws:")]
        self.found.deleted = len(own) - len(kept)
        try:
            until("the end of every instance", lambda: not hypervisor.running(), NODES_GONE_SECONDS)
        except FollowError as error:
            self.fail(str(error))
        self.show.line("destroy", f"{self.found.deleted} AWS resources deleted, {len(kept)} retained")

    def end_faults(self) -> None:
        """Those of this rehearsal: destroy meets AWS as it is."""
        try:
            self.aws.end_faults(self.options.faults)
        except OSError as error:
            self.fail(f"the faults can't be ended: {error}")

    def destroyed(self, deployment: Deployment) -> Destroyed:
        """A destroy that a signal cuts is repeated from there: what was made must go."""
        try:
            with self.interrupts.raised():
                return destroy(deployment, on_event=self.tell)
        except KeyboardInterrupt:
            self.show.line("failed", f"{INTERRUPTED}, destroy is repeated")
            return destroy(deployment, on_event=self.tell)

    def count_made(self, deployment: Deployment) -> None:
        own = [one for one in deployment.standing if one.type.startswith("aws:") and not one.adopted]
        self.found.created = len(own)
        self.made = {one.urn: f"{one.type} {one.name}" for one in own}

    def note_limits(self, deployment: Deployment) -> None:
        """What stood in for something, from what happened on the nodes."""
        self.found.scaled += self.backend.scaled()
        self.found.not_rehearsed += self.backend.not_rehearsed() + NOT_EMULATED
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

    def examine(self, before: list[Any], earlier: set[str]) -> None:
        """The account after destroy against the account before. `earlier`: the instances that it had."""
        self.clock.enter("audit")
        own = mine(self.aws.instances(), self.options.stack)
        self.found.billed = tuple(billed_by_type((one for one in own if one.id not in earlier), self.aws.now()))
        running = [one.id for one in own if one.state != "terminated"]
        if running:
            self.fail(f"instances still run: {', '.join(running)}")
        self.found.leaked = tuple(audit.leaked(before, self.aws.dump(), self.kept))
        for problem in [
            *(f"leaked: {one.service} {one.kind} {one.id}" for one in self.found.leaked),
            *audit.check_journal(self.made, self.aws.journal(), ADAPTER_KEY),
        ]:
            self.fail(problem)
