"""The stack file of a kept rehearsal, changed for the rehearsal."""

from pathlib import Path

import yaml

from rehearsal.kept.stack_settings import write_stack_settings
from rehearsal.workspace import Options
from tests.machines import ROOT
from trainyard.config.project import read_project


def test_job_of_a_run_is_scaled_as_that_of_the_stack_file(tmp_path: Path) -> None:
    train = {"model": {"preset": "8b", "vocabulary": 256, "sequence_length": 4096}, "steps": 9000, "batch_size": 128}
    options = Options(project=read_project(ROOT), stack="a100-cluster", changes=(("job.train", train),))
    write_stack_settings(options, tmp_path / "run.yaml")
    written = yaml.safe_load((tmp_path / "run.yaml").read_text())["config"]["trainyard:cluster"]["job"]["train"]
    assert (written["model"]["dim"], written["steps"]) == (64, 20)
