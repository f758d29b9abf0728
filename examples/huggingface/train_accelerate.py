"""Train a small GPT-2 on text files with Hugging Face Accelerate, under torchrun.

DATA_URI contains .txt files. The script saves a checkpoint every --save-steps steps to CHECKPOINT_URI, resumes from the
newest, and writes results.json to RESULTS_URI.
"""

import json
import shutil

import torch
import torch.distributed as dist
from accelerate import Accelerator
from data import ByteSequences, create_model
from files import CACHE, download_newest_checkpoint, environment, text_of, upload
from torch.utils.data import DataLoader
from train_trainer import parse_arguments


def main() -> None:
    arguments, has_gpus = parse_arguments(), torch.cuda.is_available()
    # Without cpu=True Accelerate ignores torchrun's processes on a machine without GPUs.
    accelerator = Accelerator(cpu=not has_gpus, mixed_precision="bf16" if has_gpus else "no")
    with accelerator.local_main_process_first():
        dataset = ByteSequences(text_of(environment("DATA_URI")), arguments.length)
        checkpoint = download_newest_checkpoint()
    model = create_model(arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    loader = DataLoader(dataset, arguments.batch_size, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    if checkpoint:
        accelerator.load_state(str(checkpoint))
        step = int(checkpoint.name.split("-")[1])
    loss = torch.zeros(())
    while step < arguments.steps:
        for batch in loader:
            if step == arguments.steps:
                break
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % arguments.save_steps == 0 or step == arguments.steps:
                save(accelerator, step)
    mean = accelerator.reduce(loss.detach(), "mean").item()
    if accelerator.is_main_process:
        folder = CACHE / "results"
        folder.mkdir(parents=True, exist_ok=True)
        results = {"steps": step, "loss": mean, "world_size": accelerator.num_processes}
        (folder / "results.json").write_text(json.dumps(results))
        upload(folder, environment("RESULTS_URI"))
        print(f"{step} steps, loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


def save(accelerator: Accelerator, step: int) -> None:
    """Save and upload a checkpoint. Rank 0 has the weights and the state of the optimizer of all ranks."""
    name = f"checkpoint-{step}"
    folder = CACHE / "output" / name
    accelerator.save_state(str(folder))
    if accelerator.is_main_process:
        upload(folder, f"{environment('CHECKPOINT_URI').rstrip('/')}/{name}")
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
