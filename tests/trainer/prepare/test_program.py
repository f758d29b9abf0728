"""`python -m trainer.prepare` as a user starts it: killed and started again, with S3, what it prints."""

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
from tests.trainer.prepare.conftest import Program, index
from trainyard.models.dataset import INDEX


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """120 files, of which small shards take a while."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(120):
        (folder / f"{number}.txt").write_text(f"file {number}\n" * 200)
    return folder


def test_a_killed_run_goes_on(many: Path, program: Program, environment: dict[str, str], tmp_path: Path) -> None:
    words = ["tokens", str(many), "--name", "d", "--held-out", "0.1", "--shard-tokens", "10"]
    work = tmp_path / "work"
    cut = [*words, "--target", str(tmp_path / "cut"), "--work", str(work), "--json"]
    process = subprocess.Popen([sys.executable, "-m", "trainer.prepare", *cut], env=environment, cwd=tmp_path)
    eventually(lambda: len(list((work / "parts").glob("*.json"))) > 2, "the first shards")
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: not any(child.is_running() for child in children), "the end of the killed run's processes")
    assert not (tmp_path / "cut" / INDEX).exists()
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cut").glob("train-*")}
    assert before

    again = program(*cut, "--workers", "1")
    assert again.returncode == 0, again.stderr
    assert f"goes on in {work}" in again.stderr
    assert json.loads(again.stdout)["continued"] >= 1
    assert not work.exists()
    straight = program(*words, "--target", str(tmp_path / "straight"))
    assert straight.returncode == 0, straight.stderr
    assert index(tmp_path / "cut") == index(tmp_path / "straight")
    kept = [name for name, time in before.items() if (tmp_path / "cut" / name).stat().st_mtime_ns == time]
    assert kept


def test_from_s3_to_s3(program: Program, environment: dict[str, str], s3_environment: dict[str, str], s3: Any) -> None:
    body = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(500))
    s3.put_object(Bucket="runs", Key="raw/deep/a.jsonl", Body=body.encode())
    environment |= s3_environment
    words = ("tokens", "s3://runs/raw/", "--target", "s3://runs/prepared", "--name", "d", "--held-out", "0.1", "--json")
    ended = program(*words)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    stored = json.loads(s3.get_object(Bucket="runs", Key="prepared/dataset.json")["Body"].read())
    assert stored == found["dataset"]
    (shard,) = stored["train"]
    assert s3.head_object(Bucket="runs", Key=f"prepared/{shard['key']}")["ContentLength"] == shard["bytes"]


def test_a_bucket_that_is_not_there_is_told(
    program: Program, environment: dict[str, str], s3_environment: dict[str, str], lines: Path
) -> None:
    environment |= s3_environment
    ended = program("tokens", str(lines), "--target", "s3://no-such-bucket/x", "--name", "d")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "prepare: --target = 's3://no-such-bucket/x/': there is no such bucket. Make the bucket, or name another.\n"
    )


def test_digits_are_images(program: Program, tmp_path: Path) -> None:
    ended = program("sample", "digits", "--target", str(tmp_path / "digits"), "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["samples"], len(found["dataset"]["classes"])) == (1797, 10)


def test_the_standard_library_is_text(program: Program, tmp_path: Path) -> None:
    ended = program("sample", "python-bytes", "--target", str(tmp_path / "python"))
    assert ended.returncode == 0, ended.stderr
    found = index(tmp_path / "python")
    train, held_out = (sum(shard.count for shard in shards) for shards in (found.train, found.validation))
    assert train > 4_000_000
    assert 0.03 < held_out / (train + held_out) < 0.08
    assert "shards" in ended.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shard-tokens", "many"], "--shard-tokens = 'many': is no number of tokens. Write one such as 64M or 500K."),
        (["--end", "x"], "--end = 'x': bytes have no such token. Leave it out."),
        (["--tokenizer", "none.json"], "--tokenizer = 'none.json': there is no such file. "),
    ],
)
def test_bad_words_end_in_one_message(
    program: Program, lines: Path, words: list[str], told: str, tmp_path: Path
) -> None:
    ended = program("tokens", str(lines), "--target", str(tmp_path / "out"), "--name", "d", *words)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_interrupted_run_ends_in_one_line(many: Path, environment: dict[str, str], tmp_path: Path) -> None:
    words = ["tokens", str(many), "--name", "d", "--target", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.prepare", *words, "--shard-tokens", "10"],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    eventually(lambda: any((tmp_path / "work" / "parts").glob("*.json")), "the first shard")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert told.splitlines()[-1] == "prepare: interrupted; the same words go on from here"
    assert "Traceback" not in told
