"""The stages of a rehearsal: deploy the stack, train, download the results, bake an image."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter

import yaml

from rehearsal import audit
from rehearsal.adapter.deployment import Deployment
from rehearsal.context import Context
from rehearsal.engine.base import Engine
from rehearsal.faults import format_fault
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.run_faults.injection import FaultInjector
from rehearsal.run_progress import TERMINATION_TIMEOUT_SECONDS, follow_run, wait_until
from rehearsal.workspace import BAKED_STACK_FILE, LOGS
from trainyard.aws.s3 import Bucket
from trainyard.config.cost import max_run_usd, usd_per_hour
from trainyard.config.project import PROJECT_ROOT
from trainyard.models.layout import RunLayout
from trainyard.models.run import LaunchResult
from trainyard.operations.runs import DownloadedResults
from trainyard.quantity import quantity
from trainyard.times import format_time

OUTCOME_TIMEOUT_SECONDS = 1800.0
SCHEDULED_START_TIMEOUT_SECONDS = 180.0
COMMAND_TIMEOUT_SECONDS = 300
BAKE_TIMEOUT_SECONDS = 600
RESERVED_STACK_FILE = "reserved.yaml"  # the stack file as it is rehearsed


class Stages:
    """Runs the stages in order in an emulated AWS. `is_previewed`: whether the preview has succeeded."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.is_previewed = self.is_reserved = False

    def reserve(self) -> None:
        """Reserve capacity where the stack's file system is in one zone, as the documentation recommends."""
        settings, options = self.context.settings, self.context.options
        if settings.fsx is None or not settings.reserves_any_capacity:
            return
        self.context.clock.start("reserve")
        file = options.folder / RESERVED_STACK_FILE
        file.write_text(yaml.safe_dump({"config": self.context.config}))
        held = json.loads(self.run_cli("reserve", "--file", str(file), "--yes", "--json"))
        price = f"{held['usd_per_hour']:,.2f} USD per hour"
        text = f"{held['instances']} x {held['instance_type']} in {held['zone']}, {price}"
        self.context.display.print_line("reserve", text)
        self.is_reserved = True

    def release(self) -> None:
        """Cancel what `reserve` left; the end of the run has cancelled it unless the deployment failed before."""
        if self.is_reserved:
            self.run_cli("reserve", "--cancel")

    def preview(self, engine: Engine) -> None:
        """Run the preview, and show the cost on AWS."""
        self.context.clock.start("preview")
        self.context.display.update_status("preview", "running the Pulumi program")
        self.context.display.print_line("preview", f"{engine.preview()} AWS resources to create")
        hourly, maximum = usd_per_hour(self.context.settings), max_run_usd(self.context.settings)
        minutes = self.context.settings.job.time_limit_minutes
        cost = f"on AWS {hourly:,.2f} USD per hour, at most {maximum:,.2f} USD in {quantity(minutes, 'minute')}"
        block = self.context.settings.capacity.capacity_block
        prepaid = ", without the Capacity Block, which is paid in advance" if block else ""
        self.context.display.print_line("preview", f"{cost}{prepaid}")
        self.is_previewed = True

    def deploy(self, engine: Engine) -> None:
        """Create the resources and launch the workers, as `pulumi up` does."""
        self.context.clock.start("resources")
        self.context.display.update_status("resources", "creating the resources")
        deployment = engine.up(self.set_deployment)
        launch = LaunchResult.model_validate_json(deployment.exports["launch"].splitlines()[-1])
        self.context.clock.split(launch.phases)
        self.context.result.run, self.context.result.nodes = launch.run, len(launch.nodes)
        if launch.state == "scheduled":
            self.wait_for_scheduled_start()

    def wait_for_scheduled_start(self) -> None:
        """Show the status of the scheduled run, and wait until AWS has started its nodes."""
        self.context.clock.start("scheduled")
        status = json.loads(self.run_cli("status", "--json"))
        nodes, start = status["record"]["nodes"], status["scheduled_start_time"]
        text = (
            f"AWS starts {quantity(nodes, 'node')} in {max(0.0, start - time.time()):.0f} s, with no operator's process"
        )
        self.context.display.print_line("scheduled", text)
        timeout_seconds = max(0.0, start - time.time()) + SCHEDULED_START_TIMEOUT_SECONDS
        wait_until("the scheduled start", lambda: len(self.running_workers()) == nodes, timeout_seconds)
        self.context.display.print_line("scheduled", f"{quantity(nodes, 'node')} running")
        self.context.result.nodes = nodes

    def set_deployment(self, deployment: Deployment) -> None:
        """Store the deployment before it creates a resource, so that destroy also runs after an interrupted `up`."""
        self.context.deployment = deployment

    def train(self, hypervisor: Hypervisor) -> None:
        """Wait until the run has an outcome and its workers are terminated, unless they are kept."""
        self.context.clock.start("training")
        assert self.context.result.run is not None
        train, display = self.context.settings.job.train, self.context.display
        faults = FaultInjector(
            self.context.options.run_faults,
            self.data_bucket(),
            self.context.result.run,
            hypervisor,
            inject_into_account=self.context.aws.inject,
            describe=format_fault,
        )
        last_fault_seconds = max((fault.after for fault in faults.remaining), default=0.0)
        try:
            with faults.injecting():
                outcome = follow_run(
                    self.data_bucket(),
                    self.context.result.run,
                    steps=train.steps if train else None,
                    timeout_seconds=OUTCOME_TIMEOUT_SECONDS + last_fault_seconds,
                    failure=lambda: hypervisor.failure,
                    log=lambda text: display.print_line("job", text),
                    show=lambda text: display.update_status("job", text),
                )
        finally:  # the report of an interrupted rehearsal names the injected faults, too
            self.context.run_faults_without_effect = tuple(faults.remaining)
            self.context.result.injections = tuple(faults.injections)
        for error in faults.errors:
            self.context.add_error(error)
        if outcome.state == "succeeded":
            self.context.display.print_line("job", f"{outcome.state}: {outcome.reason}")
        else:
            self.context.add_error(outcome.describe())
        if outcome.nodes_kept_until is not None:
            end = format_time(outcome.nodes_kept_until)
            self.context.display.print_line("nodes", f"kept for another run until {end}, or until destroy")
            return
        display.update_status("job", "waiting for the termination of the workers")
        wait_until("the termination of the workers", lambda: not self.running_workers(), TERMINATION_TIMEOUT_SECONDS)

    def running_workers(self) -> list[str]:
        """Return the ids of the worker instances that are running according to EC2."""
        groups = self.context.deployment.exports["groups"] if self.context.deployment else []
        return [
            instance.id
            for instance in self.context.aws.instances()
            if instance.autoscaling_group in groups and instance.state == "running"
        ]

    def data_bucket(self) -> Bucket:
        """Return the data bucket of the deployment."""
        assert self.context.deployment is not None
        return Bucket(self.context.deployment.exports["data_bucket"], self.context.aws.region)

    def collect_results(self) -> None:
        """Download the results with the `trainyard` command, read the losses from S3, and load each checkpoint."""
        self.context.clock.start("results")
        result, data = self.context.result, self.data_bucket()
        assert result.run is not None
        downloaded = self.download_results(result.run)
        result.results_uri = downloaded.results_uri
        result.checkpoints, result.results = downloaded.checkpoints, downloaded.results
        prefix = RunLayout(result.run).prefix
        result.objects = dict(Counter(key.removeprefix(prefix).split("/")[0] for key in data.keys(prefix)))
        if self.context.settings.job.train is not None and not result.errors:
            result.losses = audit.read_losses(data, result.run)
            uris = [item.uri for item in result.checkpoints]
            failures = audit.check_checkpoints(uris, {"AWS_REGION": self.context.aws.region})
            result.checkpoints_loaded = True
            count = len(result.checkpoints)
            self.context.display.print_line(
                "results", f"{count - len(failures)} of {quantity(count, 'checkpoint')} load in a new process"
            )
            for problem in [*audit.check_results(data, result.run, result.losses), *failures]:
                self.context.add_error(problem)

    def download_results(self, run: str) -> DownloadedResults:
        """Run `trainyard results` and `trainyard logs`. Returns the result of `trainyard results`."""
        folder, logs = self.context.options.folder / "results", self.context.options.folder / LOGS
        output = self.run_cli("results", "--run", run, "--to", str(folder), "--json")
        downloaded = DownloadedResults.model_validate_json(output)
        logs.write_text(self.run_cli("logs", "--run", run, "--source", "."))
        count = quantity(len(downloaded.files), "file")
        self.context.display.print_line("results", f"{count} in {folder}, output of the ranks in {logs}")
        return downloaded

    def bake_image(self) -> None:
        """Run `trainyard bake` on a copy of the stack file, which then names the image."""
        self.context.clock.start("bake")
        options = self.context.options
        file = options.folder / BAKED_STACK_FILE
        shutil.copy(options.project.find_stack_file(options.stack), file)
        arguments = ["--file", str(file), "--minutes", str(BAKE_TIMEOUT_SECONDS // 60), "--json"]
        baked = json.loads(self.run_cli("bake", *arguments, timeout_seconds=BAKE_TIMEOUT_SECONDS))
        text = f"image {baked['image']}, baked from {baked['source_image']}, written to {file.name}"
        self.context.display.print_line("bake", text)

    def run_cli(self, command: str, *arguments: str, timeout_seconds: int = COMMAND_TIMEOUT_SECONDS) -> str:
        """Run a `trainyard` command as an operator does. Returns its stdout; raises RuntimeError with its stderr."""
        self.context.display.update_status(self.context.clock.current, f"running trainyard {command}")
        options = self.context.options
        trainyard = [sys.executable, "-m", "trainyard", "-C", str(options.project.folder)]
        process = subprocess.run(
            [*trainyard, command, "--stack", options.stack, *arguments],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if process.returncode:
            message = process.stderr.strip().rpartition("trainyard: ")[2]  # its error message follows progress lines
            raise RuntimeError(f"trainyard {command} failed: {message}")
        return process.stdout
