"""The way of a rehearsal from nothing to results at home: the program, the nodes, the job."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from typing import Any

from rehearsal import audit
from rehearsal.adapter.graph import Deployment
from rehearsal.context import Scene
from rehearsal.engine.base import Engine
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.run_progress import NODES_GONE_SECONDS, follow, until
from rehearsal.workspace import BAKED, find_stack
from trainyard.aws.s3 import Bucket
from trainyard.config.demand import capped_usd, hourly_usd
from trainyard.models.layout import RunLayout
from trainyard.models.run import LaunchResult

OUTCOME_SECONDS = 1800.0
RESULTS_SECONDS = 300
BAKE_SECONDS = 600


class Road:
    """The phases, in their order, on a running emulated AWS. `previewed`: whether the program has been through one."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.previewed = False

    def bring_up(self, engine: Engine) -> None:
        """Preview, then resources and launch, as `pulumi up` does."""
        self.scene.clock.enter("preview")
        self.scene.show.line("preview", f"{engine.preview()} AWS resources to make")
        hour, most = hourly_usd(self.scene.settings), capped_usd(self.scene.settings)
        minutes = self.scene.settings.job.time_limit_minutes
        self.scene.show.line("preview", f"on AWS {hour:,.2f} USD an hour, {most:,.2f} at most in {minutes:g} minutes")
        self.previewed = True
        self.scene.clock.enter("resources")
        deployment = engine.up(self.begun)
        launched = LaunchResult.model_validate_json(deployment.exports["launch"].splitlines()[-1])
        self.scene.clock.split(launched.phases)
        self.scene.found.run, self.scene.found.nodes = launched.run, len(launched.nodes)

    def begun(self, deployment: Deployment) -> None:
        self.scene.deployment = deployment  # whatever cuts the way from here on: destroy takes it down

    def train(self, hypervisor: Hypervisor) -> None:
        """Until the controller has ended the run and the workers are gone."""
        self.scene.clock.enter("training")
        assert self.scene.found.run is not None
        outcome = follow(
            self.data(),
            self.scene.found.run,
            seconds=OUTCOME_SECONDS,
            failure=lambda: hypervisor.failure,
            say=lambda text: self.scene.show.line("job", text),
        )
        self.scene.show.line("job", f"{outcome.state}: {outcome.reason}")
        if outcome.state != "succeeded":
            trace = f"\n{outcome.failure.traceback}" if outcome.failure else ""
            self.scene.fail(f"the job {outcome.state}: {outcome.reason}{trace}")
        until("the end of the workers", lambda: not self.workers(), NODES_GONE_SECONDS)

    def workers(self) -> list[str]:
        """Worker instances that EC2 says are running."""
        groups = self.scene.deployment.exports["groups"] if self.scene.deployment else []
        return [
            one.id for one in self.scene.aws.instances() if one.autoscaling_group in groups and one.state == "running"
        ]

    def data(self) -> Bucket:
        assert self.scene.deployment is not None
        return Bucket(self.scene.deployment.exports["data_bucket"], self.scene.aws.region)

    def bring_home(self) -> None:
        """Results by the operator's own command; figures from S3; each checkpoint loaded."""
        self.scene.clock.enter("results")
        run, data = self.scene.found.run, self.data()
        assert run is not None
        fetched = self.fetch_results(run)
        self.scene.found.results_uri = fetched["results_uri"]
        self.scene.found.checkpoints = tuple(fetched["checkpoints"])
        self.scene.found.objects = dict(
            Counter(key.removeprefix(RunLayout(run).prefix).split("/")[0] for key in data.keys(RunLayout(run).prefix))
        )
        if self.scene.settings.job.train is not None and not self.scene.found.errors:
            self.scene.found.losses = audit.read_losses(data, run)
            unfit = audit.check_checkpoints(self.scene.found.checkpoints, {"AWS_REGION": self.scene.aws.region})
            count = len(self.scene.found.checkpoints)
            self.scene.show.line("results", f"{count - len(unfit)} of {count} checkpoints load in a fresh process")
            for problem in [*audit.check_results(data, run, self.scene.found.losses), *unfit]:
                self.scene.fail(problem)

    def fetch_results(self, run: str) -> dict[str, Any]:
        """Results and logs by the operator's own commands."""
        folder, logs = self.scene.options.folder / "results", self.scene.options.folder / "logs.txt"
        fetched: dict[str, Any] = json.loads(self.operate("results", "--run", run, "--to", str(folder), "--json"))
        logs.write_text(self.operate("logs", "--run", run, "--source", "."))
        self.scene.show.line(
            "results", f"{len(fetched['files'])} files in {folder}, what the ranks wrote in {logs.name} beside"
        )
        return fetched

    def bake(self) -> None:
        """The workers' image, by the operator's own command, on a copy of the stack's file."""
        self.scene.clock.enter("bake")
        options = self.scene.options
        file = options.folder / BAKED
        shutil.copy(find_stack(options.stack, options.root / "stacks"), file)
        minutes = BAKE_SECONDS // 60
        words = ["--file", str(file), "--minutes", str(minutes), "--json"]
        baked = json.loads(self.operate("bake", *words, seconds=BAKE_SECONDS))
        self.scene.show.line("bake", f"{baked['image']}, on {baked['source']}; {file.name} names it")

    def operate(self, command: str, *words: str, seconds: int = RESULTS_SECONDS) -> str:
        """Run `trainyard` as the operator does; its stdout. Raises RuntimeError with its message when it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "trainyard", command, "--stack", self.scene.options.stack, *words],
            cwd=self.scene.options.root,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"trainyard {command} failed: {done.stderr.strip()}")
        return done.stdout
