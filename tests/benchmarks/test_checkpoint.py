"""The benchmark of checkpoints, on a state of 12 MiB."""

import json
import subprocess
import sys

from benchmarks.preview import ROOT


def test_training_waits_less_than_for_a_synchronous_save() -> None:
    command = [sys.executable, "benchmarks/checkpoint.py", "--json", "--mib", "12", "--runs", "1", "--server", "/none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["stall_seconds"].keys() == {"ours", "dcp", "torch.save"}
    assert "go install" in found["no_s3"]
    assert found["ratio_s3"] is None
    assert 0 < found["ratio"] < 1
