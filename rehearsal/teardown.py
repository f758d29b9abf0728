"""The end of a rehearsal, whatever way it went: destroy, and the account's truth after it."""

import time
from collections.abc import Iterable
from functools import partial

from rehearsal import audit
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.teardown import Destroyed, DestroyFailed
from rehearsal.aws.billing import billed_by_type
from rehearsal.context import Scene
from rehearsal.engine.base import Engine
from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.hypervisor import Hypervisor, mine
from rehearsal.interrupts import INTERRUPTED
from rehearsal.run_progress import NODES_GONE_SECONDS, FollowError, skipped_roles, until
from rehearsal.scaling import why_left_out
from rehearsal.timeline import tell
from trainyard.aws.s3 import Bucket
from trainyard.models.report import Scaled

AT_ONCE = "an account that answers at once"
_DELAYS = {"capacity", "invisible", "outage", "throttle"}  # faults that are what AWS itself may do


def emulated(faults: Iterable[str]) -> list[Scaled]:
    """Where the emulated AWS is not as AWS is, with these faults on (as `--fault` takes them)."""
    on = [spec for spec in faults if spec.partition(",")[0] in _DELAYS]
    by = f"{AT_ONCE}, but for what was injected: {'; '.join(on)}" if on else AT_ONCE
    rights = Scaled(
        what="the operator's own rights (IAM)", by="the right to everything", why="only roles are judged by policies"
    )
    return [rights, Scaled(what="AWS's delays, quotas and throttling", by=by, why="the emulated AWS is local")]


class Clearing:
    """Made before anything else is: it remembers the account as it was."""

    def __init__(self, scene: Scene, backend: Backend, engine: Engine) -> None:
        self.scene, self.backend, self.engine = scene, backend, engine
        self._before = scene.aws.dump()
        self._instances = {one.id for one in scene.aws.instances()}
        self._calls = len(scene.aws.journal())
        self._made: dict[str, str] = {}
        self._kept: set[str] = set()

    def take_down(self, hypervisor: Hypervisor) -> None:
        """`pulumi destroy`: also after a failure, of whatever was made."""
        self.scene.clock.enter("destroy")
        with self.scene.bearing("the faults can't be ended"):  # destroy meets AWS as it is
            self.scene.aws.end_faults(self.scene.options.faults)
        deployment = self.scene.deployment
        if deployment is None:
            return
        self.count_made(deployment)
        self.note_limits()
        with self.scene.bearing("the journal of calls can't be read"):
            self.note_rights(deployment)
        with self.scene.bearing("which roles the nodes left out can't be read"):
            self.note_left_out(deployment)
        with self.scene.bearing("the nodes' events and metrics can't be read"):
            self.note_story(deployment)
        if self.scene.account_died:
            return  # nothing stands any more
        try:
            gone = self.destroyed(deployment)
        except DestroyFailed as error:
            self.scene.fail(f"destroy failed: {error}")
            return
        # A retained object goes all the same with a bucket that does not stay: ids begin with the bucket's name.
        there = {name for one in self.scene.aws.dump() for name in one.names}
        kept = [one for one in gone.retained if {one.id, one.id.split("/")[0]} & there]
        self.scene.found.retained = tuple(f"{one.type} {one.id}" for one in kept)
        self.scene.found.images = tuple(audit.baked_images(self.scene.aws.region, self.scene.options.stack))
        self._kept = {*(one.id for one in kept), *self.scene.found.images}
        own = [one for one in (*gone.deleted, *gone.retained) if one.type.startswith("aws:")]
        self.scene.found.deleted = len(own) - len(kept)
        try:
            until("the end of every instance", lambda: not hypervisor.running(), NODES_GONE_SECONDS)
        except FollowError as error:
            self.scene.fail(str(error))
        self.scene.show.line("destroy", f"{self.scene.found.deleted} AWS resources deleted, {len(kept)} retained")

    def note_rights(self, deployment: Deployment) -> None:
        """Of the stack's own roles, before they go, while nodes still call."""
        roles = {one.id for one in deployment.of_type("aws:iam/role:Role") if one.made}
        for problem in audit.check_rights(self.scene.aws.journal()[self._calls :], roles):
            self.scene.fail(problem)

    def destroyed(self, deployment: Deployment) -> Destroyed:
        """A destroy that a signal cuts is repeated from there: what was made must go."""
        try:
            with self.scene.interrupts.raised():
                return self.engine.destroy(deployment)
        except KeyboardInterrupt:
            self.scene.show.line("failed", f"{INTERRUPTED}, destroy is repeated")
            return self.engine.destroy(deployment)

    def count_made(self, deployment: Deployment) -> None:
        own = [one for one in deployment.standing if one.type.startswith("aws:") and not one.adopted]
        self.scene.found.created = len(own)
        self._made = {one.urn: f"{one.type} {one.name}" for one in own}

    def note_limits(self) -> None:
        """What stood in for something."""
        self.scene.found.scaled += [*self.backend.scaled(), *self.engine.scaled(), *emulated(self.scene.found.faults)]
        if self.scene.options.bake:
            by, why = "the builder's disk, which goes with the rehearsal", "the emulated AWS keeps no disks"
            self.scene.found.scaled.append(Scaled(what="the baked image", by=by, why=why))
        self.scene.found.not_rehearsed += self.backend.not_rehearsed()

    def note_left_out(self, deployment: Deployment) -> None:
        """What was not rehearsed, as the nodes' plays told it."""
        buckets = [deployment.exports.get(name) for name in ("data_bucket", "staging_bucket")]
        if all(buckets):
            data, staging = (Bucket(str(name), self.scene.aws.region) for name in buckets)
            why = partial(why_left_out, backend=self.backend.name)
            self.scene.found.not_rehearsed += skipped_roles(data, staging, self.scene.found.run, why)

    def note_story(self, deployment: Deployment) -> None:
        """While its buckets are there."""
        tell(
            self.scene.found.story,
            deployment,
            self.scene.aws.instances(),
            self.scene.aws.region,
            time.time(),
            trainer=self.scene.settings.job.train is not None,
        )

    def keep_node_logs(self) -> None:
        """What the nodes logged last, for a failure that left no better word."""
        file = self.scene.options.folder / "node-logs.txt"
        with self.scene.bearing("the nodes' logs can't be kept"):
            if tails := self.backend.log_tails():
                file.write_text(tails)
                self.scene.show.line("logs", f"of the nodes: {file}")

    def examine(self) -> None:
        """The account after destroy against the account before."""
        self.scene.clock.enter("audit")
        own = mine(self.scene.aws.instances(), self.scene.options.stack)
        self.scene.found.billed = tuple(
            billed_by_type((one for one in own if one.id not in self._instances), self.scene.aws.now())
        )
        running = [one.id for one in own if one.state != "terminated"]
        if running:
            self.scene.fail(f"instances still run: {', '.join(running)}")
        self.scene.found.leaked = tuple(audit.leaked(self._before, self.scene.aws.dump(), self._kept))
        for problem in [
            *(f"leaked: {one.service} {one.kind} {one.id}" for one in self.scene.found.leaked),
            *self.engine.check_calls(self._made, self.scene.aws.journal()),
        ]:
            self.scene.fail(problem)
