"""`python -m trainer.prepare` as a program: kill and resume, S3, and its output."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.polling import eventually
from tests.trainer.prepare.conftest import Program, read_index
from trainyard.models.dataset import INDEX


@pytest.fixture
def many_files(tmp_path: Path) -> Path:
    """120 files; with small shards their preparation is slow enough to be killed."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(120):
        (folder / f"{number}.txt").write_text(f"file {number}\n" * 200)
    return folder


def test_killed_run_resumes(many_files: Path, program: Program, environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ["tokens", str(many_files), "--name", "d", "--held-out", "0.1", "--shard-tokens", "10"]
    work = tmp_path / "work"
    command = [*arguments, "--target", str(tmp_path / "resumed"), "--work", str(work), "--json"]
    process = subprocess.Popen([sys.executable, "-m", "trainer.prepare", *command], env=environment, cwd=tmp_path)
    eventually(lambda: len(list((work / "parts").glob("*.json"))) > 2, "the first shards")
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: not any(child.is_running() for child in children), "the exit of the killed run's processes")
    assert not (tmp_path / "resumed" / INDEX).exists()
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "resumed").glob("train-*")}
    assert before

    second = program(*command, "--workers", "1")
    assert second.returncode == 0, second.stderr
    assert f"resuming in {work}" in second.stderr
    assert json.loads(second.stdout)["resumed_shards"] >= 1
    assert not work.exists()
    reference = program(*arguments, "--target", str(tmp_path / "reference"))
    assert reference.returncode == 0, reference.stderr
    assert read_index(tmp_path / "resumed") == read_index(tmp_path / "reference")
    reused = [name for name, time in before.items() if (tmp_path / "resumed" / name).stat().st_mtime_ns == time]
    assert reused


def test_from_s3_to_s3(program: Program, environment: dict[str, str], s3_environment: dict[str, str], s3: Any) -> None:
    body = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(500))
    s3.put_object(Bucket="runs", Key="raw/deep/a.jsonl", Body=body.encode())
    environment |= s3_environment
    arguments = (
        "tokens",
        "s3://runs/raw/",
        "--target",
        "s3://runs/prepared",
        "--name",
        "d",
        "--held-out",
        "0.1",
        "--json",
    )
    process = program(*arguments)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    stored = json.loads(s3.get_object(Bucket="runs", Key="prepared/dataset.json")["Body"].read())
    assert stored == result["dataset"]
    (shard,) = stored["train"]
    assert s3.head_object(Bucket="runs", Key=f"prepared/{shard['key']}")["ContentLength"] == shard["bytes"]


def test_missing_bucket_is_rejected(
    program: Program, environment: dict[str, str], s3_environment: dict[str, str], lines: Path
) -> None:
    environment |= s3_environment
    process = program("tokens", str(lines), "--target", "s3://no-such-bucket/x", "--name", "d")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        "prepare: --target = 's3://no-such-bucket/x/': the bucket does not exist. "
        "Create the bucket, or set another bucket.\n"
    )


def test_sample_digits_is_a_dataset_of_images(program: Program, tmp_path: Path) -> None:
    process = program("sample", "digits", "--target", str(tmp_path / "digits"), "--json")
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert (result["samples"], len(result["dataset"]["classes"])) == (1797, 10)


def test_sample_python_bytes_is_a_dataset_of_tokens(program: Program, tmp_path: Path) -> None:
    process = program("sample", "python-bytes", "--target", str(tmp_path / "python"))
    assert process.returncode == 0, process.stderr
    index = read_index(tmp_path / "python")
    train, held_out = (sum(shard.count for shard in shards) for shards in (index.train, index.validation))
    assert train > 4_000_000
    assert 0.03 < held_out / (train + held_out) < 0.08
    assert "shards" in process.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--shard-tokens", "many"],
            "--shard-tokens = 'many': is no number of tokens. Write a number such as 64M or 500K.",
        ),
        (["--end", "x"], "--end = 'x': bytes have no such token. Remove the option."),
        (["--tokenizer", "none.json"], "--tokenizer = 'none.json': there is no such file. "),
    ],
)
def test_invalid_arguments_print_one_message(
    program: Program, lines: Path, arguments: list[str], message: str, tmp_path: Path
) -> None:
    process = program("tokens", str(lines), "--target", str(tmp_path / "out"), "--name", "d", *arguments)
    assert process.returncode == 2
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_interrupted_run_prints_one_line(many_files: Path, environment: dict[str, str], tmp_path: Path) -> None:
    arguments = [
        "tokens",
        str(many_files),
        "--name",
        "d",
        "--target",
        str(tmp_path / "out"),
        "--work",
        str(tmp_path / "work"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.prepare", *arguments, "--shard-tokens", "10"],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    eventually(lambda: any((tmp_path / "work" / "parts").glob("*.json")), "the first shard")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does for Ctrl-C
    output = process.communicate(timeout=60)[1]
    assert process.returncode == 130, output
    assert output.splitlines()[-1] == "prepare: interrupted; the same command resumes the run"
    assert "Traceback" not in output
