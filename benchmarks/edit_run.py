"""Seconds from a changed job to its first step: on nodes that are kept, and with a fresh launch.

Nodes are folders with processes (process backend), so a fresh launch is faster than on AWS, where instances boot.
`seconds` is the time from the start of the launch to the start of torchrun, and `job_start_seconds` the time from there
to the first line of the job's script on rank 0. `launched` is the number of instances that the edit launches, as the
account counts them. `ratio` is the time to the first step, divided by that of the fresh launch.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import typer
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.launch import NullDisplay
from benchmarks.options import AsJson
from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.process.backend import ProcessBackend
from rehearsal.locks import address_block
from rehearsal.substitutions import substitute_settings
from rehearsal.workspace import aws_environment
from tests.wheels import Wheel
from trainyard.aws import clients
from trainyard.config import CONFIG_KEY
from trainyard.config.project import read_project
from trainyard.models.layout import MANIFEST
from trainyard.models.manifest import Manifest
from trainyard.models.run import LaunchResult
from trainyard.operations.cluster import Cluster
from trainyard.operations.job_run import JobOptions, run_job
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.stop import stop_run

STACK, NODES = "custom-job", 2
WHEEL = Wheel(name="benchmark_package")
SCRIPT = """\
import json, os, sys, time
if os.environ["RANK"] == "0":
    with open(os.environ["STEP_FILE"], "a") as file:
        file.write(json.dumps({"time": time.time(), "label": "LABEL", "arguments": sys.argv[1:]}) + "\\n")
"""
OUTCOME_TIMEOUT_SECONDS = 120.0


@dataclass
class Edit:
    """The measurement of one edit."""

    seconds: float
    job_start_seconds: float
    launched: int


@dataclass
class EditBenchmark:
    """A deployed cluster and the edits of its job. `folder`: for the files of the job, below the project."""

    aws: EmulatedAws
    cluster: Cluster
    stack_file: Path
    source: Path
    steps: Path
    results: dict[str, Edit] = field(default_factory=dict)

    def write_script(self, label: str) -> None:
        """Write the job's script."""
        self.source.mkdir(parents=True, exist_ok=True)
        (self.source / "train.py").write_text(SCRIPT.replace("LABEL", label))

    def measure(self, name: str, launch: Callable[[], LaunchResult]) -> None:
        """Run a launch, and wait for the first step and the end of its job. Raises RuntimeError if the job fails."""
        instances = {instance.id for instance in self.aws.instances()}
        lines_before = self._count_steps()
        started = time.time()
        run = launch().run
        outcome = self._wait_for_outcome(run)
        if outcome != "succeeded":
            raise RuntimeError(f"{name}: run {run} has {outcome}")
        step = json.loads(self.steps.read_text().splitlines()[lines_before])
        attempt = self._attempt_started(run)
        launched = len({instance.id for instance in self.aws.instances()} - instances)
        self.results[name] = Edit(round(attempt - started, 2), round(step["time"] - attempt, 2), launched)

    def _count_steps(self) -> int:
        return len(self.steps.read_text().splitlines()) if self.steps.exists() else 0

    def _wait_for_outcome(self, run: str) -> str:
        deadline = time.monotonic() + OUTCOME_TIMEOUT_SECONDS
        while (outcome := self.cluster.outcome(run)) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"run {run} has no outcome after {OUTCOME_TIMEOUT_SECONDS:.0f} s")
            time.sleep(0.2)
        return outcome.state

    def _attempt_started(self, run: str) -> float:
        """Return the Unix time at which torchrun of the last attempt started: its folder was created just before."""
        folders = self.steps.parent.glob(f"nodes/*/opt/trainyard/runs/{run}/attempt-*/metrics")
        return max(folder.stat().st_mtime for folder in folders)

    def run(self, *arguments: str) -> LaunchResult:
        """Start the job of the stack file, as `trainyard run` does."""
        options = JobOptions(arguments=arguments, stack_file=self.stack_file)
        launch_options = LaunchOptions(new_run=True, deployed_digest=self.cluster.manifest.digest())
        cluster = Cluster(self.cluster.stack, self.cluster.region)
        return run_job(cluster, read_project(ROOT), options, launch_options, NullDisplay())

    def update(self, change: Callable[[dict[str, Any]], None]) -> LaunchResult:
        """Change the manifest as `pulumi up` does, and start a run of it."""
        staging = self.cluster.staging
        assert staging is not None
        manifest = json.loads(staging.read(MANIFEST))
        change(manifest)
        staging.write(MANIFEST, Manifest.model_validate(manifest).model_dump_json(indent=1).encode())
        return Launch(
            Cluster(self.cluster.stack, self.cluster.region), NullDisplay(), LaunchOptions(new_run=True)
        ).start()


def measure() -> dict[str, Any]:
    """Launch a cluster, and measure each kind of edit once on its nodes."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{STACK}.yaml").read_text())["config"]
    settings, _ = substitute_settings(config[CONFIG_KEY], NODES, "process")
    with (
        tempfile.TemporaryDirectory(dir=_build_folder()) as name,
        address_block() as addresses,
        EmulatedAws.start(Path(name) / "aws", addresses) as aws,
        aws_environment(aws.environment()),
        ProcessBackend(Path(name)) as backend,
        Hypervisor(aws, backend, "trainyard/edit-run", print),
    ):
        clients.client.cache_clear()
        folder = Path(name)
        settings["job"] |= {
            "source": str((folder / "job").relative_to(ROOT)),
            "command": ["train.py"],
            "environment": {"STEP_FILE": str(folder / "steps.jsonl")},
            "keep_nodes_minutes": 30,
        }
        settings["node"]["package_index"] = str(WHEEL.build(folder).parent)
        stack_file = folder / "Pulumi.edit-run.yaml"
        stack_file.write_text(yaml.safe_dump({"config": {**config, CONFIG_KEY: settings}}))
        cluster = Cluster("edit-run", aws.region)
        edits = EditBenchmark(aws, cluster, stack_file, folder / "job", folder / "steps.jsonl")
        edits.write_script("first")
        up({**config, CONFIG_KEY: settings}, "edit-run", ROOT, account=EmulatedAccount(aws.region, run_commands=False))
        try:
            run_edits(edits)
        finally:
            stop_run(cluster, NullDisplay())
            clients.client.cache_clear()
    fresh = edits.results["fresh launch"]
    total = fresh.seconds + fresh.job_start_seconds
    return {
        "stack": STACK,
        "nodes": NODES,
        "edits": {
            name: {**asdict(edit), "ratio": round((edit.seconds + edit.job_start_seconds) / total, 3)}
            for name, edit in edits.results.items()
        },
    }


def run_edits(edits: EditBenchmark) -> None:
    """Measure the fresh launch, then each edit."""
    edits.measure("fresh launch", lambda: Launch(edits.cluster, NullDisplay()).start())
    edits.measure("argument", lambda: edits.run("--epochs", "2"))
    edits.write_script("second")
    edits.measure("code", edits.run)
    (edits.source / "requirements.txt").write_text(f"{WHEEL.name}=={WHEEL.version}\n")
    edits.measure("requirements", edits.run)
    edits.measure("node role", lambda: edits.update(_change_role))
    edits.measure("one more node", lambda: edits.update(_add_node))


def _change_role(manifest: dict[str, Any]) -> None:
    manifest["node"]["variables"]["base_nofile"] = 2**20


def _add_node(manifest: dict[str, Any]) -> None:
    (group,) = manifest["groups"]
    group["nodes"] = group["max_size"] = NODES + 1


def _build_folder() -> Path:
    """Return the folder for the files of the benchmark: a job's source is below the project."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    return folder


def main(as_json: AsJson = False) -> None:
    """Seconds from a changed job to its first step."""
    results = measure()
    if as_json:
        print(json.dumps(results))
        return
    print("edit            launched    launch  job start   ratio")
    for name, edit in results["edits"].items():
        times = f"{edit['seconds']:8.2f} s {edit['job_start_seconds']:8.2f} s"
        print(f"{name:<15} {edit['launched']:>8} {times} {edit['ratio']:>7.2f}")


if __name__ == "__main__":
    typer.run(main)
