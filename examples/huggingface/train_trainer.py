"""Train a small GPT-2 on text files with the Trainer of Hugging Face transformers, under torchrun.

DATA_URI contains .txt files. The script saves a checkpoint every --save-steps steps to CHECKPOINT_URI, resumes from the
newest, and writes results.json to RESULTS_URI.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from data import ByteSequences, create_model
from files import CACHE, download_newest_checkpoint, environment, text_of, upload
from transformers import Trainer, TrainerCallback, TrainingArguments


class UploadCheckpoints(TrainerCallback):
    """Uploads each checkpoint when the Trainer has saved it. Rank 0 saves it."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            name = f"checkpoint-{state.global_step}"
            upload(Path(args.output_dir) / name, f"{environment('CHECKPOINT_URI').rstrip('/')}/{name}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per process")
    parser.add_argument("--length", type=int, default=64, help="bytes per sequence")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    return parser.parse_args()


def main() -> None:
    arguments, has_gpus = parse_arguments(), torch.cuda.is_available()
    training = TrainingArguments(
        output_dir=str(CACHE / "output"),
        max_steps=arguments.steps,
        save_steps=arguments.save_steps,
        logging_steps=5,
        per_device_train_batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        bf16=has_gpus,
        use_cpu=not has_gpus,
        ddp_backend="nccl" if has_gpus else "gloo",
        report_to=[],
        disable_tqdm=True,
    )
    with training.main_process_first(local=True, desc="download"):
        dataset = ByteSequences(text_of(environment("DATA_URI")), arguments.length)
        checkpoint = download_newest_checkpoint()
    model = create_model(arguments.length)
    trainer = Trainer(model=model, args=training, train_dataset=dataset, callbacks=[UploadCheckpoints()])
    result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.is_world_process_zero():
        folder = CACHE / "results"
        folder.mkdir(parents=True, exist_ok=True)
        results = {"steps": result.global_step, "loss": result.training_loss, "world_size": training.world_size}
        (folder / "results.json").write_text(json.dumps(results))
        upload(folder, environment("RESULTS_URI"))
        print(f"{result.global_step} steps, loss {result.training_loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
