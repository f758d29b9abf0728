"""A job reads the user's files of a bucket and of a model, with the rights of the nodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal.sources import is_small_model
from tests.rehearsal.conftest import run_rehearsal, write_stack
from trainyard.models.layout import split_s3_uri

KEY = "arn:aws:kms:eu-west-1:999988887777:key/12345678-1234-1234-1234-123456789012"
SCRIPT = """\
import json, os
import boto3
from botocore.exceptions import ClientError
s3 = boto3.client("s3")
bucket, _, prefix = os.environ["DATA_URI"].removeprefix("s3://").partition("/")
keys = [item["Key"] for item in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]]
text = s3.get_object(Bucket=bucket, Key=keys[0])["Body"].read().decode()
config = json.load(open(os.environ["MODEL_PATH"] + "/config.json"))
result = {"keys": keys, "text": text, "layers": config["num_hidden_layers"], "model_uri": os.environ["MODEL_URI"]}
target, _, results = os.environ["RESULTS_URI"].removeprefix("s3://").partition("/")
if os.environ["RANK"] == "0":
    s3.put_object(Bucket=target, Key=results + "read.json", Body=json.dumps(result).encode())
"""
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 24, "hidden_size": 1024}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("pytorch_model.bin", True),
        ("training_args.bin", False),
        ("optimizer.bin", False),
    ],
)
def test_small_model_has_weights(tmp_path: Path, weights: str, expected: bool) -> None:
    for name in ("config.json", weights):
        (tmp_path / name).write_text("{}")
    assert is_small_model(tmp_path) is expected


@pytest.mark.slow
def test_custom_job_reads_files_of_the_user(tree: Path, shared: dict[str, str], s3: Any, tmp_path: Path) -> None:
    for name in ("books", "llama"):
        (tmp_path / name).mkdir()
    (tmp_path / "books/1.txt").write_text("once upon a time")
    (tmp_path / "llama/config.json").write_text(json.dumps({**LLAMA, "num_attention_heads": 16}))
    source = tree / "examples/reading"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(SCRIPT)
    job = {
        **{"name": "reading", "source": "examples/reading", "command": ["train.py"], "processes_per_node": 1},
        **{"data": "s3://books-of-the-user/en", "model": "s3://models-of-the-user/llama", "kms_keys": [KEY]},
    }
    write_stack(tree, "reading", job=job, nodes=1, launch={"merge": True, "health_check_timeout_minutes": 0})
    folders = ("--data", str(tmp_path / "books"), "--model", str(tmp_path / "llama"))
    ended = run_rehearsal(tree, "--stack", "reading", "--profile", "instant", *folders, environment=shared)
    assert ended.exit_status == 0, ended.stderr
    bucket, prefix = split_s3_uri(ended.report["results_uri"])
    assert json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}read.json")["Body"].read()) == {
        "keys": ["en/1.txt"],
        "text": "once upon a time",
        "layers": 2,
        "model_uri": "s3://models-of-the-user/llama/",
    }
    replacements = {entry["original"]: entry["replacement"] for entry in ended.report["substitutions"]}
    assert replacements["the objects below s3://books-of-the-user/en/"] == f"1 file of {tmp_path}/books"
    assert replacements["the model s3://models-of-the-user/llama/"].startswith("LlamaForCausalLM with ")
