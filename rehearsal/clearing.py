"""The end of a rehearsal, whatever way it went: destroy, and the account's truth after it."""

import time

from contract.objects import Bucket
from contract.report import NotRehearsed
from rehearsal import audit
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.session import ACCESS_KEY as ADAPTER_KEY
from rehearsal.adapter.teardown import Destroyed, DestroyFailed, destroy
from rehearsal.aws.billing import billed_by_type
from rehearsal.follow import FollowError, skipped_roles, until
from rehearsal.hypervisor.hypervisor import Hypervisor, mine
from rehearsal.hypervisor.process import ProcessBackend
from rehearsal.interrupts import INTERRUPTED
from rehearsal.scene import Scene
from rehearsal.story import tell

NODES_GONE_SECONDS = 120.0
NOT_EMULATED = [
    NotRehearsed(what="the operator's own rights (IAM)", why="only calls of roles are judged by their policies"),
    NotRehearsed(what="AWS's delays, quotas and throttling", why="the emulated AWS answers at once"),
]


class Clearing:
    """Made before anything else is: it remembers the account as it was."""

    def __init__(self, scene: Scene, backend: ProcessBackend) -> None:
        self.scene, self.backend = scene, backend
        self._before = scene.aws.dump()
        self._instances = {one.id for one in scene.aws.instances()}
        self._calls = len(scene.aws.journal())
        self._made: dict[str, str] = {}
        self._kept: set[str] = set()

    def take_down(self, hypervisor: Hypervisor) -> None:
        """`pulumi destroy`: also after a failure, of whatever was made."""
        self.scene.clock.enter("destroy")
        self.note_rights()
        self.end_faults()
        deployment = self.scene.deployment
        if deployment is None:
            return
        self.count_made(deployment)
        self.note_limits(deployment)
        self.note_story(deployment)
        try:
            gone = self.destroyed(deployment)
        except DestroyFailed as error:
            self.scene.fail(f"destroy failed: {error}")
            return
        # A retained object goes all the same with a bucket that does not stay: ids begin with the bucket's name.
        there = {one.id for one in self.scene.aws.dump()}
        kept = [one for one in gone.retained if one.id.split("/")[0] in there]
        self.scene.found.retained = tuple(f"{one.type} {one.id}" for one in kept)
        self._kept = {one.id for one in kept}
        own = [one for one in (*gone.deleted, *gone.retained) if one.type.startswith("aws:")]
        self.scene.found.deleted = len(own) - len(kept)
        try:
            until("the end of every instance", lambda: not hypervisor.running(), NODES_GONE_SECONDS)
        except FollowError as error:
            self.scene.fail(str(error))
        self.scene.show.line("destroy", f"{self.scene.found.deleted} AWS resources deleted, {len(kept)} retained")

    def note_rights(self) -> None:
        """Before roles go, while nodes still call. Nothing that is wrong with it stands in the way of destroy."""
        try:
            deployment = self.scene.deployment
            roles = {one.id for one in deployment.of_type("aws:iam/role:Role")} if deployment else set()
            for problem in audit.check_rights(self.scene.aws.journal()[self._calls :], roles):
                self.scene.fail(problem)
        except (OSError, ValueError) as error:
            self.scene.fail(f"the journal of calls can't be read: {error}")

    def end_faults(self) -> None:
        """Those of this rehearsal: destroy meets AWS as it is."""
        try:
            self.scene.aws.end_faults(self.scene.options.faults)
        except OSError as error:
            self.scene.fail(f"the faults can't be ended: {error}")

    def destroyed(self, deployment: Deployment) -> Destroyed:
        """A destroy that a signal cuts is repeated from there: what was made must go."""
        try:
            with self.scene.interrupts.raised():
                return destroy(deployment, on_event=self.scene.tell)
        except KeyboardInterrupt:
            self.scene.show.line("failed", f"{INTERRUPTED}, destroy is repeated")
            return destroy(deployment, on_event=self.scene.tell)

    def count_made(self, deployment: Deployment) -> None:
        own = [one for one in deployment.standing if one.type.startswith("aws:") and not one.adopted]
        self.scene.found.created = len(own)
        self._made = {one.urn: f"{one.type} {one.name}" for one in own}

    def note_limits(self, deployment: Deployment) -> None:
        """What stood in for something, from what happened on the nodes."""
        self.scene.found.scaled += self.backend.scaled()
        self.scene.found.not_rehearsed += self.backend.not_rehearsed() + NOT_EMULATED
        buckets = [deployment.exports.get(name) for name in ("data_bucket", "staging_bucket")]
        if all(buckets):
            data, staging = (Bucket(str(name), self.scene.aws.region) for name in buckets)
            self.scene.found.not_rehearsed += skipped_roles(data, staging, self.scene.found.run)

    def note_story(self, deployment: Deployment) -> None:
        """While its buckets are there. Nothing that is wrong with it stands in the way of destroy."""
        trainer = self.scene.settings.job.train is not None
        try:
            tell(
                self.scene.found.story,
                deployment,
                self.scene.aws.instances(),
                self.scene.aws.region,
                time.time(),
                trainer=trainer,
            )
        except Exception as error:  # of any kind: what was made must go
            self.scene.fail(f"the nodes' events and metrics can't be read: {error!r}")

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
            *audit.check_journal(self._made, self.scene.aws.journal(), ADAPTER_KEY),
        ]:
            self.scene.fail(problem)
