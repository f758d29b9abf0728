"""Bad input ends with one clear message and status 2, before anything is made."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rehearsal.locks import stack_lock
from tests.rehearsal.conftest import LEFT_OUT, ROOT, clean_environment, write_stack
from tests.rehearsal.test_broken import loopback_only

FILE = "stacks/Pulumi.bad.yaml"
OWN = {"name": "own", "dataset": "d", "source": "examples/own", "command": ["train.py"]}
KEY = "-----BEGIN OPENSSH PRIVATE " + "KEY-----\n"


def own(**changes: Any) -> dict[str, Any]:
    return {"job": {**OWN, **changes}}


def trained(**changes: Any) -> dict[str, Any]:
    return {"job": {"merge": True, **changes}}


# What is changed in the stack `local`, and how the message begins: key, value, why. Then what to change.
SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown key": ({"instance_typ": "c7i.xlarge"}, "instance_typ = 'c7i.xlarge': no such key", "docs/settings.md"),
    "a word for a number": ({"nodes": "two"}, "nodes = 'two': not a whole number", f"Write one such as 2 in {FILE}"),
    "no nodes": ({"nodes": 0}, "nodes = 0: must be greater than 0", f"Write a larger one in {FILE}"),
    "an unknown instance type": (
        {"instance_type": "p9.huge"},
        "instance_type = 'p9.huge': not in the hardware catalog (trainyard/config/catalog.json), which has ",
        f"Change it in {FILE}",
    ),
    "EFA of a type without": (
        {"network": {"efa": True}},
        "network.efa = True: c7i.xlarge bears no Elastic Fabric Adapter",
        "Set it to false",
    ),
    "a range that is too small": (
        {"network": {"cidr": "10.0.0.0/28"}},
        "network.cidr = '10.0.0.0/28': the VPC's range must be from /16",
        "such as 10.42.0.0/16",
    ),
    "a file system of a size that is not sold": (
        {"fsx": {"capacity_gib": 3000}},
        "fsx.capacity_gib = 3000: FSx for Lustre SSD storage comes in 1200 GiB or multiples",
        f"Change it in {FILE}",
    ),
    "no job": ({"job": None}, "job = None: not an object with keys of its own", "Write its keys below it"),
    "a dataset with odd characters": (
        trained(dataset="My Data!"),
        "job.dataset = 'My Data!': must be up to 63 lower-case letters",
        f"Change it in {FILE}",
    ),
    "a run that is none": (
        trained(resume="../../secrets"),
        "job.resume = '../../secrets': must be the id of a run",
        "such as 20260131-183012-base-4f1a",
    ),
    "a secret under no variable's name": (
        trained(secrets={"API-KEY": "/key"}),
        "job.secrets.API-KEY = 'API-KEY': must be the name of an environment variable",
        f"Change it in {FILE}",
    ),
    "a number for text": (
        trained(environment={"LEVEL": 3}),
        "job.environment.LEVEL = 3: not text",
        "Write text, in quotes where YAML would take it for something else",
    ),
    "a batch that does not split": (
        trained(train={"batch_size": 30}),
        "job.train.batch_size = 30: batch_size 30 is not a multiple of micro_batch_size 4 x 4 processes",
        "Change batch_size, micro_batch_size or the number of processes",
    ),
    "a precision that is none": (
        trained(train={"precision": "int8"}),
        "job.train.precision = 'int8': not one of 'fp32', 'bf16', 'fp16' or 'float8'",
        "Write one of these",
    ),
    "less time than the start may take": (
        trained(time_limit_minutes=20),
        "job.time_limit_minutes = 20.0: the workers end then, and bringing them up may take 30 minutes",
        "Set it to more than 30, or launch.bring_up_minutes to less",
    ),
    "a job of both kinds": (
        trained(source="examples/own-job", command=["train.py"]),
        "job.train = '...': stands beside source or command",
        "Keep train, or keep source and command",
    ),
    "a source without a command": (
        {"job": {"name": "a", "dataset": "d", "source": "examples/own-job"}},
        "job.command = None: the user's own job needs both source and command",
        "Add the script in that folder and its arguments, as a list",
    ),
    "an absent source": (
        own(source="nowhere"),
        "job.source = 'nowhere': no such folder in ",
        "relative to Pulumi.yaml",
    ),
    "a source that is a file": (
        own(source="examples/own-job/train.py"),
        "job.source = 'examples/own-job/train.py': is a file, not a folder",
        "Give the folder that the script is in",
    ),
    "an absent script": (
        own(source="examples/own-job", command=["main.py"]),
        "job.command = 'main.py': no such file in examples/own-job",
        "Let the first word be a Python script of the source folder",
    ),
    "two sources of capacity": (
        {"capacity": {"spot": {}, "reservation": {}}},
        "capacity = ['spot', 'reservation']: instances come from one source, so it takes exactly one key",
        "Keep one of on_demand, spot, ",
    ),
    "a range of the internet's": (
        {"network": {"cidr": "8.8.0.0/16"}},
        "network.cidr = '8.8.0.0/16': not a private range",
        "Choose one below 10.0.0.0/8",
    ),
    "a bucket's name that is too long": (
        {"storage": {"bucket": "b" * 64}},
        f"storage.bucket = '{'b' * 64}': must be the name of a bucket: 3 to 63 lower-case letters",
        f"Change it in {FILE}",
    ),
    "GPUs that torch can't drive": (
        {"instance_type": "p3.16xlarge"},
        "instance_type = 'p3.16xlarge': its V100 GPUs are supported up to CUDA 12.9",
        "Choose a type with newer GPUs",
    ),
    "a run that may cost more than it shall": (
        {"guardrails": {"max_cost_usd": 0.01}},
        "guardrails.max_cost_usd = 0.01: at ",
        "Raise it, ",
    ),
    "true for a number": ({"nodes": True}, "nodes = True: not a whole number", f"Write one such as 2 in {FILE}"),
}

# Files beside the script of a job of one's own: name, what is in it, and the message.
SOURCES: dict[str, tuple[str, str, str, str]] = {
    "a file of secrets": (".env", "TOKEN=1", "'examples/own/.env': looks like a file of secrets", "Remove it, or name"),
    "a private key": ("notes.md", KEY, "'examples/own/notes.md': holds a private key", "examples/own/.trainyardignore"),
    "too much": ("weights.bin", "", "'examples/own': holds more than 64 MiB", "Keep data in the dataset's bucket"),
}

# A stack file's own text.
FILES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", f"{FILE} = '...': it is empty", "Begin with a copy of stacks/Pulumi.local.yaml"),
    "no YAML": (b"config: [\n", f"{FILE} = '...': not a Pulumi stack file", "Mend its YAML"),
    "no object": (b"trainyard\n", f"{FILE} = '...': it has no object `config`", "Put config: at its top"),
    "without config": (b"nodes: 2\n", f"{FILE} = '...': it has no object `config`", "Put config: at its top"),
    "config that is a list": (b"config: [1]\n", f"{FILE} = '...': it has no object `config`", "Put config: at its top"),
    "without a cluster": (
        b"config:\n  aws:region: us-east-1\n",
        "trainyard:cluster = None: the stack file has no such object",
        f"Describe the cluster under it in {FILE}",
    ),
    "a cluster that is a text": (
        b"config:\n  trainyard:cluster: big\n",
        "trainyard:cluster = 'big': must be an object",
        f"Describe the cluster under it in {FILE}",
    ),
    "not UTF-8": (b"# caf\xe9\nconfig: {}\n", f"{FILE} = '...': not text in UTF-8", "Write it anew in UTF-8"),
    "a key twice": (b"config:\n  a:b: 1\n  a:b: 2\n", "a:b stands twice", "Mend its YAML"),
    "a region that is not there": (
        b"config:\n  aws:region: us-esat-1\n",
        "aws:region = 'us-esat-1': AWS has no such region",
        f"Change it in {FILE}",
    ),
}

# The command's own words.
WORDS: dict[str, tuple[list[str], str, str]] = {
    "a stack that is not there": (
        ["--stack", "nothing"],
        "--stack = 'nothing': no such file: stacks/Pulumi.nothing.yaml",
        "Choose one of a100-cluster, ",
    ),
    "a stack's file": (
        ["--stack", "stacks/Pulumi.local.yaml"],
        "--stack = 'stacks/Pulumi.local.yaml': a stack goes by its name, not by its file",
        "Write --stack local",
    ),
    "a stack with a slash": (
        ["--stack", "team/local"],
        "--stack = 'team/local': no name of a stack",
        "Write such a name",
    ),
    "no nodes": (["--nodes", "0"], "--nodes = '0': not a whole number from 1 to 1024", "Write one, or leave it out"),
    "nodes in words": (["--nodes", "x"], "--nodes = 'x': not a whole number from 1 to 1024", "Write one, or leave it"),
    "a bake of processes": (["--bake"], "--backend = 'process': its nodes have no disk", "Add --backend nspawn"),
    "too many nodes": (
        ["--nodes", "4096"],
        "--nodes = '4096': not a whole number from 1 to 1024",
        "Write one, or leave",
    ),
    "an unknown fault": (
        ["--fault", "earthquake,strength=9"],
        "--fault = 'earthquake,strength=9': no kind of fault 'earthquake'",
        "Write it as one of capacity,limit=LIMIT",
    ),
}

# Variables of the environment.
ENVIRONMENT: dict[str, tuple[dict[str, str], str, str]] = {
    "an account elsewhere": (
        {"AWS_ENDPOINT_URL": "https://example.com"},
        "AWS_ENDPOINT_URL = 'https://example.com': it is not on this machine's loopback",
        "Start one with `python -m rehearsal aws`, or unset it",
    ),
    "an account at no port": (
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:port"},
        "AWS_ENDPOINT_URL = 'http://127.0.0.1:port': no emulated AWS answers there",
        "Start one with `python -m rehearsal aws`, or unset it",
    ),
    "a denial of what is no operation": (
        {"REHEARSAL_DENY": "fsx:CreateFilesystem"},
        "REHEARSAL_DENY = 'fsx:CreateFilesystem': no API operation fsx:CreateFilesystem",
        "Name API operations with commas between, or unset it",
    ),
}


def files(tree: Path) -> set[Path]:
    return {path for path in tree.rglob("*") if "__pycache__" not in path.parts}


def refused(
    tree: Path,
    *words: str,
    command: str = "run",
    before: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    leaves: frozenset[Path] = frozenset(),
) -> str:
    """The message of a rehearsal that makes nothing: no file comes of it, but for what it `leaves`.

    `before` runs the command.
    """
    there = files(tree)
    done = subprocess.run(
        [*before, sys.executable, "-m", "rehearsal", command, *words],
        cwd=tree,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("rehearsal: ")
    assert "Traceback" not in done.stderr
    assert files(tree) - leaves == there - leaves
    return done.stderr


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str, tree: Path) -> None:
    changes, message, fix = SETTINGS[case]
    write_stack(tree, "bad", **changes)
    told = refused(tree, "--stack", "bad")
    assert told.startswith(f"rehearsal: trainyard:cluster.{message}")
    assert fix in told


@pytest.mark.parametrize("case", SOURCES)
def test_the_source_of_a_job(case: str, tree: Path) -> None:
    name, content, message, fix = SOURCES[case]
    folder = tree / "examples/own"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / name).write_text(content)
    os.truncate(folder / name, len(content) or 65 * 2**20)
    write_stack(tree, "bad", **own())
    told = refused(tree, "--stack", "bad")
    shutil.rmtree(folder)
    assert told.startswith(f"rehearsal: trainyard:cluster.job.source = {message}")
    assert fix in told


@pytest.mark.parametrize("case", FILES)
def test_a_stack_file(case: str, tree: Path) -> None:
    content, message, fix = FILES[case]
    (tree / FILE).write_bytes(content)
    told = refused(tree, "--stack", "bad")
    assert message in told
    assert fix in told


@pytest.mark.parametrize("case", WORDS)
def test_words_of_the_command(case: str, tree: Path) -> None:
    words, message, fix = WORDS[case]
    told = refused(tree, *words)
    assert told.startswith(f"rehearsal: {message}")
    assert fix in told


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [("--backend", "qemu", "no such back-end"), ("--region", "mars-1", "AWS has no such region")],
)
def test_words_of_an_account_that_stays(option: str, value: str, why: str, tree: Path) -> None:
    told = refused(tree, option, value, command="aws")
    assert told.startswith(f"rehearsal: {option} = '{value}': {why}. ")


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_the_environment(case: str, tree: Path) -> None:
    environment, message, fix = ENVIRONMENT[case]
    told = refused(tree, environment=environment)
    assert told.startswith(f"rehearsal: {message}")
    assert fix in told


def test_an_account_where_nothing_listens(tree: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    told = refused(tree, environment={"AWS_ENDPOINT_URL": endpoint})
    assert f"AWS_ENDPOINT_URL = '{endpoint}': no emulated AWS answers there" in told


def test_a_second_rehearsal_of_a_stack_says_who_holds_it(tree: Path) -> None:
    write_stack(tree, "held")
    with stack_lock(tree / "build/rehearsal/held", "held"):
        told = refused(tree, "--stack", "held")
    assert f"process {os.getpid()}" in told
    assert "Wait for its end, or end it by its id" in told


def test_what_only_the_account_can_tell_leaves_nothing_either(tree: Path) -> None:
    """But for the lock's file: to remove one that another may have opened would let two hold it."""
    write_stack(tree, "bad", network={"zone": "us-east-1z"})
    lock = tree / "build/rehearsal/bad/lock"
    told = refused(tree, "--stack", "bad", leaves=frozenset([lock, *lock.parents]))
    assert lock.read_text() == ""
    assert "trainyard:cluster.network.zone = 'us-east-1z': is no zone of us-east-1 that the account may use" in told
    assert "Choose one of us-east-1a, " in told


def test_no_address_is_free(tree: Path, tmp_path: Path) -> None:
    """In a network of its own, or other rehearsals would find none either."""
    taking = tmp_path / "take.py"
    taking.write_text(
        "import socket, subprocess, sys\n"
        "for block in range(1, 255):\n"
        "    try:\n"
        "        taken = socket.create_server((f'127.77.{block}.1', 7770))\n"
        "    except OSError:\n"
        "        continue  # by another rehearsal, where the network is the machine's\n"
        "    taken.detach()\n"
        "sys.exit(subprocess.call(sys.argv[1:]))\n"
    )
    told = refused(tree, before=[*loopback_only(), sys.executable, str(taking)])
    assert "the loopback network = '127.77.0.0/16': no block of addresses in it is free" in told
    assert "ss -ltnp 'sport = :7770' names it" in told


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the tree that nothing ran in yet."""
    shutil.copytree(ROOT, tmp_path / "trainyard", ignore=LEFT_OUT)
    return tmp_path / "trainyard"


def test_build_that_is_a_file(clone: Path) -> None:
    (clone / "build").touch()
    told = refused(clone)
    assert "the folder of the rehearsal = 'build/rehearsal/local': build is not a folder" in told
    assert "Move it out of the way" in told


def on_tmpfs(folder: Path, options: str) -> list[str]:
    """Words before a command that sees a file system of its own, with these mount options, as `folder`. For root."""
    mount = f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


def test_build_that_can_not_be_written(clone: Path) -> None:
    (clone / "build").mkdir(mode=0o555)
    root = os.geteuid() == 0  # who may write whatever the mode
    told = refused(clone, before=on_tmpfs(clone / "build", "ro") if root else [])
    assert f"the folder of the rehearsal = 'build/rehearsal/local': {clone}/build can't be written to" in told
    assert "Make it writable to this user" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, which takes root")
def test_build_without_room(clone: Path) -> None:
    (clone / "build").mkdir()
    told = refused(clone, "--nodes", "3", before=on_tmpfs(clone / "build", "size=40m"))
    assert "'build/rehearsal/local': 40 MiB are free there, 3 nodes and their head need 80" in told
    assert "Make room, or rehearse fewer nodes (--nodes)" in told


def test_make_passes_its_words_on_and_tells_the_status(clone: Path) -> None:
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/.made").touch()
    python = clone / ".venv/bin/python"
    python.write_text("#!/bin/sh\necho $#: $*\nexit 7\n")
    python.chmod(0o755)
    done = make(clone, "rehearsal", "NODES=two or three", "FAULT=invisible,seconds=5 deny,operation=ec2:CreateVpc")
    words = "--nodes two or three --fault invisible,seconds=5 --fault deny,operation=ec2:CreateVpc"
    assert done.stdout == f"15: -m rehearsal run --stack local --engine mocks --backend process {words}\n"
    assert "Error 7" in done.stderr


def test_make_tells_of_a_python_that_is_too_old(clone: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\ncase $1 in -V) echo Python 3.9.2 ;; *) exit 1 ;; esac\n")
    old.chmod(0o755)
    done = make(clone, "rehearsal", f"PYTHON={old}")
    assert done.returncode == 2
    assert f"{old} is Python 3.9.2: install Python 3.11 or newer, or name one" in done.stderr
    assert not (clone / ".venv").exists()


def make(tree: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", *words], cwd=tree, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
