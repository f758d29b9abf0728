"""Invalid input ends with one message and exit status 2, before any file or resource is created."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.locks import stack_lock
from tests.rehearsal.conftest import COPY_IGNORE, ROOT, clean_environment, write_stack
from tests.rehearsal.test_broken import loopback_only_command

FILE = "stacks/Pulumi.bad.yaml"
CUSTOM_JOB = {"name": "custom", "source": "examples/custom", "command": ["train.py"]}
KEY = "-----BEGIN OPENSSH PRIVATE " + "KEY-----\n"


def custom_job(**changes: Any) -> dict[str, Any]:
    """Return settings of a custom job, with changed keys."""
    return {"job": {**CUSTOM_JOB, **changes}}


def trainer_job(**changes: Any) -> dict[str, Any]:
    """Return settings of a job of the built-in trainer, with changed keys."""
    return {"job": {"merge": True, **changes}}


# Changes of the stack `local`, start of the message (key, value, reason), and a part of the fix.
SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": (
        {"instance_typ": "c7i.xlarge"},
        "instance_typ = 'c7i.xlarge': unknown key",
        "docs/stack-reference.md",
    ),
    "word instead of a number": (
        {"nodes": "two"},
        "nodes = 'two': not an integer",
        f"such as 2 in {FILE}",
    ),
    "zero nodes": ({"nodes": 0}, "nodes = 0: must be greater than 0", f"Increase it in {FILE}"),
    "unknown instance type": (
        {"instance_type": "p9.huge"},
        "instance_type = 'p9.huge': not in trainyard/config/catalog.json",
        f"Change it in {FILE}",
    ),
    "EFA on an instance type without EFA": (
        {"network": {"efa": True}},
        "network.efa = True: c7i.xlarge does not support Elastic Fabric Adapter",
        "Set it to false",
    ),
    "CIDR block too small": (
        {"network": {"cidr": "10.0.0.0/28"}},
        "network.cidr = '10.0.0.0/28': the VPC's CIDR block must be from /16",
        "such as 10.42.0.0/16",
    ),
    "invalid FSx storage capacity": (
        {"fsx": {"storage_capacity_gib": 3000}},
        "fsx.storage_capacity_gib = 3000: FSx for Lustre SSD storage capacity is 1200 GiB",
        f"Change it in {FILE}",
    ),
    "job is null": ({"job": None}, "job: not a mapping", "Write its keys below it"),
    "invalid dataset name": (
        trainer_job(dataset="My Data!"),
        "job.dataset = 'My Data!': must be up to 63 lower-case letters",
        f"Change it in {FILE}",
    ),
    "invalid run id": (
        trainer_job(resume="../../secrets"),
        "job.resume = '../../secrets': must be the id of a run",
        "such as 20260131-183012-base-4f1a",
    ),
    "invalid environment variable of a secret": (
        trainer_job(secrets={"API-KEY": "/key"}),
        "job.secrets.API-KEY = 'API-KEY': must be the name of an environment variable",
        f"Change it in {FILE}",
    ),
    "number instead of text": (
        trainer_job(environment={"LEVEL": 3}),
        "job.environment.LEVEL = 3: not a string",
        "in quotes",
    ),
    "batch size not divisible by the processes": (
        trainer_job(train={"batch_size": 30}),
        "job.train.batch_size = 30: batch_size 30 is not a multiple of micro_batch_size 4 x 4 processes",
        "Change batch_size, micro_batch_size or the number of processes",
    ),
    "unknown precision": (
        trainer_job(train={"precision": "int8"}),
        "job.train.precision = 'int8': not one of 'fp32', 'bf16', 'fp16', 'float8', 'mxfp8' or 'nvfp4'",
        "Write one of these",
    ),
    "time limit shorter than the startup timeout": (
        trainer_job(time_limit_minutes=20),
        "job.time_limit_minutes = 20.0: nodes may need 30 minutes to start",
        "Set it to more than 30, or launch.startup_timeout_minutes to less",
    ),
    "train and source together": (
        trainer_job(source="examples/custom-job", command=["train.py"]),
        "job.train: conflicts with source or command",
        "Keep train, or keep source and command",
    ),
    "source without command": (
        {"job": {"name": "a", "dataset": "d", "source": "examples/custom-job"}},
        "job.command: a custom job needs both source and command",
        "Add the script in that folder and its arguments, as a list",
    ),
    "missing source folder": (
        custom_job(source="nowhere"),
        "job.source = 'nowhere': no such folder in ",
        "relative to that of Pulumi.yaml",
    ),
    "source is a file": (
        custom_job(source="examples/custom-job/train.py"),
        "job.source = 'examples/custom-job/train.py': is a file, not a folder",
        "the folder of the script",
    ),
    "missing script": (
        custom_job(source="examples/custom-job", command=["main.py"]),
        "job.command = 'main.py': no such file in examples/custom-job",
        "a Python script of the source folder",
    ),
    "two capacity options": (
        {"capacity": {"spot": {}, "reservation": {}}},
        "capacity = ['spot', 'reservation']: must have one purchase option",
        "Keep one of on_demand, spot, ",
    ),
    "public CIDR block": (
        {"network": {"cidr": "8.8.0.0/16"}},
        "network.cidr = '8.8.0.0/16': not a private block",
        "10.0.0.0/8",
    ),
    "bucket name too long": (
        {"storage": {"bucket": "b" * 64}},
        f"storage.bucket = '{'b' * 64}': must be the name of a bucket: 3 to 63 lower-case letters",
        f"Change it in {FILE}",
    ),
    "GPUs that PyTorch does not support": (
        {"instance_type": "p3.16xlarge"},
        "instance_type = 'p3.16xlarge': CUDA supports its V100 GPUs up to 12.9",
        "Choose a type with newer GPUs",
    ),
    "cost above the limit": (
        {"guardrails": {"max_cost_usd": 0.01}},
        "guardrails.max_cost_usd = 0.01: at ",
        "Increase it, ",
    ),
    "boolean instead of a number": (
        {"nodes": True},
        "nodes = True: not an integer",
        f"such as 2 in {FILE}",
    ),
}

# File in the source folder of a custom job: name, content, start of the message, and a part of the fix.
SOURCES: dict[str, tuple[str, str, str, str]] = {
    "secrets file": (".env", "TOKEN=1", "'examples/custom/.env': may contain secrets", "Remove it, or add it to"),
    "private key": (
        "notes.md",
        KEY,
        "'examples/custom/notes.md': contains a private key",
        "examples/custom/.trainyardignore",
    ),
    "import of a missing module": (
        "train.py",
        "import json\nimport numpyy\n",
        "train.py:2 = 'import numpyy': ModuleNotFoundError",
        "Did you mean numpy",
    ),
    "syntax error": ("train.py", "def f(:\n", "train.py:1 = 'def f(:': SyntaxError", "Correct the script"),
    "source too large": (
        "weights.bin",
        "",
        "'examples/custom': contains more than 64 MiB",
        "Keep data in the data bucket",
    ),
}

# Content of a stack file, part of the message, and a part of the fix.
FILES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", f"{FILE}: the file is empty", "Write one with trainyard init NAME"),
    "invalid YAML": (b"config: [\n", f"{FILE}: not a Pulumi stack file", "Fix the YAML syntax"),
    "not an object": (
        b"trainyard\n",
        f"{FILE}: the file has no object `config`",
        "Add config: at the top level",
    ),
    "no config": (b"nodes: 2\n", f"{FILE}: the file has no object `config`", "Add config: at the top level"),
    "config is a list": (
        b"config: [1]\n",
        f"{FILE}: the file has no object `config`",
        "Add config: at the top level",
    ),
    "no cluster object": (
        b"config:\n  aws:region: us-east-1\n",
        "trainyard:cluster: the stack file has no such key",
        f"Describe the cluster under it in {FILE}",
    ),
    "cluster is text": (
        b"config:\n  trainyard:cluster: big\n",
        "trainyard:cluster = 'big': must be a mapping",
        f"Describe the cluster under it in {FILE}",
    ),
    "not UTF-8": (b"# caf\xe9\nconfig: {}\n", f"{FILE}: not UTF-8 text", "Convert the file to UTF-8"),
    "duplicate key": (b"config:\n  a:b: 1\n  a:b: 2\n", "duplicate key a:b", "Fix the YAML syntax"),
    "unknown region": (
        b"config:\n  aws:region: us-esat-1\n",
        "aws:region = 'us-esat-1': unknown AWS region",
        f"Change it in {FILE}",
    ),
}

# Command-line arguments, start of the message, and a part of the fix.
ARGUMENTS: dict[str, tuple[list[str], str, str]] = {
    "missing stack file": (
        ["--stack", "nothing"],
        "--stack = 'nothing': stacks/Pulumi.nothing.yaml does not exist",
        "Use one of a100-cluster, ",
    ),
    "path instead of a stack name": (
        ["--stack", "stacks/Pulumi.local.yaml"],
        "--stack = 'stacks/Pulumi.local.yaml': this is a stack file, but the option expects a stack name",
        "Use -s local",
    ),
    "stack name with a slash": (
        ["--stack", "team/local"],
        "--stack = 'team/local': not a valid stack name",
        "Use a valid stack name",
    ),
    "zero nodes": (
        ["--nodes", "0"],
        "--nodes = '0': not a whole number from 1 to 1024",
        "Use such a number, or omit --nodes",
    ),
    "nodes not a number": (
        ["--nodes", "x"],
        "--nodes = 'x': not a whole number from 1 to 1024",
        "Use such a number, or omit --nodes",
    ),
    "bake with the process backend": (
        ["--bake"],
        "--backend = 'process': its nodes have no disk",
        "Add --backend nspawn",
    ),
    "too many nodes": (
        ["--nodes", "4096"],
        "--nodes = '4096': not a whole number from 1 to 1024",
        "Use such a number, or omit --nodes",
    ),
    "unknown fault": (
        ["--fault", "earthquake,strength=9"],
        "--fault = 'earthquake,strength=9': unknown kind of fault 'earthquake'",
        "Use one of capacity,limit=LIMIT",
    ),
}

# Environment variables, start of the message, and a part of the fix.
ENVIRONMENT: dict[str, tuple[dict[str, str], str, str]] = {
    "endpoint without the file of its account": (
        {"AWS_ENDPOINT_URL": "https://example.com"},
        "AWS_ENDPOINT_URL = 'https://example.com': REHEARSAL_ACCOUNT, which names the account's file, is not set",
        "Set all variables that `python -m rehearsal aws` prints, or unset AWS_ENDPOINT_URL",
    ),
    "account without a file": (
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "REHEARSAL_ACCOUNT": "/nothing/account.json"},
        "AWS_ENDPOINT_URL = 'http://127.0.0.1:1': no emulated AWS responds",
        "Set all variables that `python -m rehearsal aws` prints, or unset AWS_ENDPOINT_URL",
    ),
    "unknown denied operation": (
        {"REHEARSAL_DENY": "fsx:CreateFilesystem"},
        "REHEARSAL_DENY = 'fsx:CreateFilesystem': AWS has no API operation fsx:CreateFilesystem",
        "Set it to API operations separated by commas, or unset it",
    ),
}


def list_files(tree: Path) -> set[Path]:
    """Return the files of the tree, without Python caches."""
    return {path for path in tree.rglob("*") if "__pycache__" not in path.parts}


def run_invalid(
    tree: Path,
    *arguments: str,
    command: str = "run",
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    new_files: frozenset[Path] = frozenset(),
) -> str:
    """Run a rehearsal with invalid input. Returns its message.

    Assert that it creates no files except `new_files`. `prefix`: command that runs the rehearsal.
    """
    files_before = list_files(tree)
    process = subprocess.run(
        [*prefix, sys.executable, "-m", "rehearsal", command, *arguments],
        cwd=tree,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 2, process.stderr
    assert process.stderr.startswith("rehearsal: ")
    assert "Traceback" not in process.stderr
    assert list_files(tree) - new_files == files_before - new_files
    return process.stderr


@pytest.mark.parametrize("case", SETTINGS)
def test_invalid_settings(case: str, tree: Path) -> None:
    changes, message, fix = SETTINGS[case]
    write_stack(tree, "bad", **changes)
    output = run_invalid(tree, "--stack", "bad")
    assert output.startswith(f"rehearsal: trainyard:cluster.{message}")
    assert fix in output


@pytest.mark.parametrize("case", SOURCES)
def test_invalid_source_of_a_custom_job(case: str, tree: Path) -> None:
    name, content, message, fix = SOURCES[case]
    folder = tree / "examples/custom"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / name).write_text(content)
    os.truncate(folder / name, len(content) or 65 * 2**20)
    write_stack(tree, "bad", **custom_job())
    output = run_invalid(tree, "--stack", "bad")
    shutil.rmtree(folder)
    assert output.startswith("rehearsal: ")
    assert message in output
    assert fix in output


@pytest.mark.parametrize("case", FILES)
def test_invalid_stack_file(case: str, tree: Path) -> None:
    content, message, fix = FILES[case]
    (tree / FILE).write_bytes(content)
    output = run_invalid(tree, "--stack", "bad")
    assert message in output
    assert fix in output


@pytest.mark.parametrize("case", ARGUMENTS)
def test_invalid_arguments(case: str, tree: Path) -> None:
    arguments, message, fix = ARGUMENTS[case]
    output = run_invalid(tree, *arguments)
    assert output.startswith(f"rehearsal: {message}")
    assert fix in output


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [("--backend", "qemu", "unknown backend"), ("--region", "mars-1", "unknown AWS region")],
)
def test_invalid_arguments_of_the_aws_command(option: str, value: str, reason: str, tree: Path) -> None:
    output = run_invalid(tree, option, value, command="aws")
    assert output.startswith(f"rehearsal: {option} = '{value}': {reason}. ")


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_invalid_environment_variables(case: str, tree: Path) -> None:
    environment, message, fix = ENVIRONMENT[case]
    output = run_invalid(tree, environment=environment)
    assert output.startswith(f"rehearsal: {message}")
    assert fix in output


def test_endpoint_where_no_account_listens(tree: Path, tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path) as stopped:
        environment = stopped.environment()
    output = run_invalid(tree, environment=environment)
    assert f"AWS_ENDPOINT_URL = '{stopped.endpoint}': no emulated AWS responds" in output


def test_endpoint_of_another_account_than_that_of_the_file(tree: Path, tmp_path: Path, shared: dict[str, str]) -> None:
    environment = {**shared, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    output = run_invalid(tree, environment=environment)
    assert f"the account of REHEARSAL_ACCOUNT is at {shared['AWS_ENDPOINT_URL']}" in output


def test_second_rehearsal_of_a_stack_reports_the_lock_holder(tree: Path) -> None:
    write_stack(tree, "held")
    with stack_lock(tree / "build/rehearsal/held", "held"):
        output = run_invalid(tree, "--stack", "held")
    assert f"process {os.getpid()}" in output
    assert "Wait until it ends, or kill that process" in output


def test_invalid_setting_detected_by_a_lookup_creates_no_files(tree: Path) -> None:
    """Except the lock file: removing it while another process has it open would allow two holders."""
    write_stack(tree, "bad", capacity={"zones": ["us-east-1z"]})
    lock = tree / "build/rehearsal/bad/lock"
    output = run_invalid(tree, "--stack", "bad", new_files=frozenset([lock, *lock.parents]))
    assert lock.read_text() == ""
    assert "trainyard:cluster.capacity.zones = 'us-east-1z': " in output
    assert "Use one of us-east-1a, " in output


def test_no_free_address_block(tree: Path, tmp_path: Path) -> None:
    """The test uses a separate network namespace, because it would block other rehearsals."""
    script = tmp_path / "listen.py"
    script.write_text(
        "import socket, subprocess, sys\n"
        "for block in range(1, 255):\n"
        "    try:\n"
        "        listener = socket.create_server((f'127.77.{block}.1', 7770))\n"
        "    except OSError:\n"
        "        continue  # in use by another rehearsal, if the network namespace is shared\n"
        "    listener.detach()\n"
        "sys.exit(subprocess.call(sys.argv[1:]))\n"
    )
    output = run_invalid(tree, prefix=[*loopback_only_command(), sys.executable, str(script)])
    assert "loopback network = '127.77.0.0/16': all 254 address blocks are in use" in output
    assert "ss -ltnp 'sport = :7770'" in output


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A new copy of the repository."""
    shutil.copytree(ROOT, tmp_path / "trainyard", ignore=COPY_IGNORE)
    return tmp_path / "trainyard"


def test_build_is_a_file(clone: Path) -> None:
    (clone / "build").touch()
    output = run_invalid(clone)
    assert "rehearsal folder = 'build/rehearsal/local': build is not a folder" in output
    assert "Move or delete that file" in output


def tmpfs_command(folder: Path, options: str) -> list[str]:
    """Return a command prefix that mounts a tmpfs at `folder` in a private namespace. It needs root."""
    mount = f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


def test_build_is_not_writable(clone: Path) -> None:
    (clone / "build").mkdir(mode=0o555)
    root = os.geteuid() == 0  # root can write regardless of the mode
    output = run_invalid(clone, prefix=tmpfs_command(clone / "build", "ro") if root else [])
    assert f"rehearsal folder = 'build/rehearsal/local': {clone}/build is not writable" in output
    assert "Give this user write access to it" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_build_without_disk_space(clone: Path) -> None:
    (clone / "build").mkdir()
    output = run_invalid(clone, "--nodes", "3", prefix=tmpfs_command(clone / "build", "size=40m"))
    assert "'build/rehearsal/local': 40 MiB are free there, but 3 workers and the head need 80" in output
    assert "Free some disk space, or rehearse fewer nodes (--nodes)" in output


def test_make_passes_arguments_and_reports_the_exit_status(clone: Path) -> None:
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/.installed").touch()
    python = clone / ".venv/bin/python"
    python.write_text("#!/bin/sh\necho $#: $*\nexit 7\n")
    python.chmod(0o755)
    process = make(
        clone, "rehearsal", "NODES=two or three", "FAULT=eventual-consistency,seconds=5 deny,operation=ec2:CreateVpc"
    )
    arguments = "--nodes two or three --fault eventual-consistency,seconds=5 --fault deny,operation=ec2:CreateVpc"
    assert process.stdout == f"15: -m rehearsal run --stack local --engine mocks --backend process {arguments}\n"
    assert "Error 7" in process.stderr


def test_make_rejects_an_old_python(clone: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\ncase $1 in -V) echo Python 3.9.2 ;; *) exit 1 ;; esac\n")
    old.chmod(0o755)
    process = make(clone, "rehearsal", f"PYTHON={old}")
    assert process.returncode == 2
    assert f"{old} is Python 3.9.2: install Python 3.11 or newer" in process.stderr
    assert not (clone / ".venv").exists()


def make(tree: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run make in the tree."""
    return subprocess.run(
        ["make", *arguments], cwd=tree, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
