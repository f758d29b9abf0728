"""Fine-tuning of a model of transformers on conversations, with and without LoRA, in several layouts."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.problems import rejects
from tests.trainer.conftest import ROOT, TINY
from tests.trainer.layouts import read_metrics, run_layouts
from tests.trainer.models.library_models import save_model
from tests.trainer.prepare.chat_models import write_tokenizer
from trainer import evaluate_model
from trainer.checkpoints.reader import read_state_dict
from trainer.export import __main__ as export_command
from trainer.prepare.chats import ChatOptions, prepare_chats
from trainer.prepare.dataset import Request
from trainer.prepare.documents import ReadOptions
from trainer.prepare.partitioning import is_held_out
from trainer.prepare.tokens import TextOptions
from trainyard.models.dataset import INDEX

pytestmark = pytest.mark.slow

INTERLEAVED = {"pipeline": 2, "schedule": "interleaved_1f1b"}
LAYERS = 4  # stages of INTERLEAVED
LORA = {"rank": 8, "alpha": 16.0}
# By number of processes.
RUNS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"full": {}, "lora": {"lora": LORA}},
    2: {
        "full-ddp": {},
        "full-fsdp": {"parallel": {"data": "fsdp"}},
        "full-tensor": {"parallel": {"tensor": 2}},
        "full-context": {"parallel": {"context": 2}},
        "lora-ddp": {"lora": LORA},
        "lora-context": {"lora": LORA, "parallel": {"context": 2, "data": "fsdp"}},
        "lora-fsdp": {"lora": LORA, "parallel": {"data": "fsdp"}},
        "lora-pipeline": {"lora": LORA, "parallel": {"pipeline": 2}},
        "lora-interleaved": {"lora": LORA, "parallel": INTERLEAVED},
        "full-interleaved": {"parallel": INTERLEAVED},
        "lora-bf16": {"lora": LORA, "parallel": {"data": "fsdp"}, "precision": "bf16"},
    },
    4: {
        "full-hsdp": {"parallel": {"data": "hsdp", "shard": 2}},
        "full-tensor-and-pipeline": {"parallel": {"tensor": 2, "pipeline": 2}},
    },
}
NAMES = [name for runs in RUNS.values() for name in runs]
# Long enough that some responses are exact.
LONG = {"long": {"steps": 60, "optimizer": {"learning_rate": 1e-2, "warmup_steps": 5}}}
STEPS = 6


def create_files(folder: Path) -> Path:
    """Write conversations to folder/data, and a model; return the folder of the model."""
    model = write_tokenizer(folder / "model")
    save_model(model, "llama", vocab_size=300, num_hidden_layers=LAYERS)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "content": "even" if n % 2 == 0 else "odd"},
            ]
        }
        for n in range(200)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = ReadOptions("messages", is_text=False)
    text = TextOptions(sources=(str(folder / "chats.jsonl"),), reading=reading, tokenizer=str(model))
    request = Request(target=str(folder / "data"), name="chats", held_out=0.2, workers=1, work=folder / "work")
    prepare_chats(ChatOptions(text=text, sequence_length=48), request)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all kinds on the same conversations."""
    folder = tmp_path_factory.mktemp("fine-tuning")
    model = create_files(folder)
    variables = {"PYTHONPATH": str(ROOT), "DATA_URI": str(folder / "data"), "TRAINYARD_CACHE": str(folder / "cache")}
    for processes, runs in {**RUNS, 1: RUNS[1] | LONG}.items():
        configs = {name: configuration(model, changes) for name, changes in runs.items()}
        run_layouts(folder, processes, configs, os.environ | variables)
    return folder


def configuration(model: Path, changes: dict[str, Any]) -> dict[str, Any]:
    return {
        **TINY,
        "model": {"path": str(model), "weights": True, "sequence_length": 48},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
        "steps": STEPS,
        "batch_size": 8,
        "evaluation": {"interval_steps": STEPS},
        "checkpoint": {"interval_steps": STEPS, "export": ["safetensors"]},
        **changes,
    }


def losses(folder: Path, name: str) -> list[float]:
    return [line["loss"] for line in read_metrics(folder / name)]


@pytest.mark.parametrize("name", NAMES)
def test_losses_equal_those_of_one_process(folder: Path, name: str) -> None:
    actual, expected = losses(folder, name), losses(folder, name.split("-")[0])
    assert len(actual) == STEPS
    assert actual == pytest.approx(expected, abs=0.02 if name == "lora-bf16" else 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_held_out_loss_decreases(folder: Path, name: str) -> None:
    results = json.loads((folder / name / "results/results.json").read_text())
    assert results["validation_loss"] < losses(folder, name)[0] - 0.1


@pytest.mark.parametrize("name", ["lora", "lora-fsdp", "lora-pipeline", "lora-interleaved"])
def test_checkpoint_has_the_low_rank_matrices_only(folder: Path, name: str) -> None:
    state = read_state_dict(f"{folder / name}/checkpoints/step-{STEPS:08d}/")
    weights = [key for key in state if key.startswith("model.")]
    assert len(weights) == LAYERS * 7 * 2
    assert all(".lora_" in key for key in weights)


@pytest.mark.parametrize("name", ["lora", "lora-ddp", "lora-fsdp", "lora-pipeline", "lora-interleaved"])
def test_merged_export_has_the_loss_of_the_adapted_model(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    export = folder / name / "results/export"
    base = load_file(folder / "model/model.safetensors")
    merged = {key: tensor for file in export.glob("*.safetensors") for key, tensor in load_file(file).items()}
    changed = {key for key, tensor in merged.items() if not torch.equal(tensor, base[key])}
    assert changed == {key for key in base if "_proj.weight" in key}
    results = json.loads((folder / name / "results/results.json").read_text())
    assert evaluated(export, folder, capsys)["loss"] == pytest.approx(results["validation_loss"], abs=1e-4)


def evaluated(model: Path, folder: Path, capsys: pytest.CaptureFixture[str], samples: int | None = 8) -> dict[str, Any]:
    """Return the figures of a model; `samples` of 8 are those of a run's evaluation."""
    limit = [] if samples is None else ["--samples", str(samples)]
    assert evaluate_model.main([str(model), str(folder / "data"), "--json", *limit]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_model_of_another_vocabulary_is_not_evaluated(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    index = json.loads((folder / "data" / INDEX).read_text())
    (tmp_path / "data" / INDEX).write_text(json.dumps(index | {"vocabulary": 5000}))
    with rejects("vocabulary_too_large", "DATA"):
        evaluate_model.main([str(folder / "model"), str(tmp_path / "data")])


@pytest.mark.parametrize("number", ["0", "-1"])
def test_number_of_evaluated_samples_is_positive(number: str) -> None:
    with pytest.raises(SystemExit):
        evaluate_model.main(["model", "data", "--samples", number])


def test_evaluation_counts_the_responses_that_are_decoded_exactly(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against greedy decoding by transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = folder / "long/results/export"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    rows = [json.loads(line)["messages"] for line in (folder / "chats.jsonl").read_text().splitlines()]
    exact = responses = 0
    for row in rows:
        if not is_held_out(json.dumps(row, sort_keys=True, ensure_ascii=False).encode(), 0.2):
            continue
        prompt = tokenizer.apply_chat_template(
            row[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        expected = tokenizer(row[1]["content"] + "<|im_end|>")["input_ids"]
        decoded = model.generate(prompt, max_new_tokens=len(expected), do_sample=False, temperature=None)
        responses += 1
        exact += decoded[0, prompt.size(1) :].tolist() == expected
    result = evaluated(export, folder, capsys, samples=None)
    assert 0 < exact < responses
    assert (result["responses"], result["exact_match"]) == (responses, pytest.approx(exact / responses))


def test_checkpoint_is_merged_into_its_base_later(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{folder / 'lora-fsdp'}/checkpoints/step-{STEPS:08d}"
    monkeypatch.setattr("sys.argv", ["export", uri, str(tmp_path), "--base", str(folder / "model")])
    assert export_command.main() == 0
    merged = load_file(folder / "lora-fsdp/results/export/model.safetensors")
    for key, tensor in load_file(tmp_path / "model.safetensors").items():
        torch.testing.assert_close(tensor, merged[key])
    assert (tmp_path / "tokenizer.json").exists()


def test_other_base_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{folder / 'lora'}/checkpoints/step-{STEPS:08d}"
    shutil.copytree(folder / "model", tmp_path / "base")
    weights = load_file(tmp_path / "base/model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in weights.items()}, tmp_path / "base/model.safetensors")
    monkeypatch.setattr("sys.argv", ["export", uri, str(tmp_path / "target"), "--base", str(tmp_path / "base")])
    assert export_command.main() == 2
    assert "has other weights than the model" in capsys.readouterr().err


def test_checkpoint_of_lora_needs_its_base(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{folder / 'lora'}/checkpoints/step-{STEPS:08d}"
    monkeypatch.setattr("sys.argv", ["export", uri, str(tmp_path)])
    assert export_command.main() == 2
    assert "--base" in capsys.readouterr().err
