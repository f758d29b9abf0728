"""Audit code and resources: `python -m tools.audit FOLDER`, with the folder of the programs bandit and checkov.

`make audit` creates their environment. Exit code 1: a finding is not in accepted.yaml.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tools.audit.findings import bandit_findings, checked_types, checkov_findings, compare, read_accepted
from tools.audit.plan import plan_of
from tools.stack_files import read_stack_file

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "build/audit"
CODE = ("infra", "trainyard", "trainer", "rehearsal", "tools")
# Together they have all types of resources.
STACKS = ("a100-cluster", "local", "spot-cluster")


def write_plans() -> list[str]:
    """Write the plans of the stacks to PLANS. Return the addresses of their resources, sorted."""
    PLANS.mkdir(parents=True, exist_ok=True)
    addresses = []
    for stack in STACKS:
        plan = plan_of(up(read_stack_file(stack), stack, ROOT, account=StaticAccount()))
        (PLANS / f"{stack}.json").write_text(json.dumps(plan, indent=1))
        addresses += [resource["address"] for resource in plan["planned_values"]["root_module"]["resources"]]
    return sorted(addresses)


def _report(command: Sequence[str | Path]) -> str:
    """Return the JSON report of a tool, which exits with 1 if there are findings."""
    # Without PYTHONPATH of this environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if process.returncode not in (0, 1):
        raise ValueError(f"{Path(command[0]).name} ended with {process.returncode}: {process.stderr[-2000:]}")
    return process.stdout


def main(programs: Path) -> int:
    """Run both tools and print the findings that are not accepted; the exit code."""
    addresses = write_plans()
    checkov = ["--directory", str(PLANS), "--framework", "terraform_plan", "--output", "json", "--skip-download"]
    resources = _report([programs / "checkov", *checkov])
    code = _report([programs / "bandit", "-q", "-ll", "-r", *CODE, "-f", "json"])
    accepted = read_accepted()
    findings = [*bandit_findings(code), *checkov_findings(resources, addresses)]
    messages = compare(findings, accepted)
    print(f"checkov has read {len(addresses)} resources of {', '.join(STACKS)}, and checked of each type:")
    print(", ".join(f"{kind} {number}" for kind, number in checked_types(resources).items()))
    print(f"{len(findings)} findings, of which {len(messages)} are not as in accepted.yaml")
    for message in messages:
        print(f"  {message}")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
