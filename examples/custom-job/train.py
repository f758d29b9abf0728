"""A custom job: plain PyTorch under torchrun, with its three URIs from the environment.

DATA_URI, CHECKPOINT_URI and RESULTS_URI are prefixes in S3. This job fits a line by data-parallel SGD, saves a
checkpoint to S3 after each epoch, resumes from the newest checkpoint, and writes its result as JSON.
"""

import argparse
import io
import json
import os

import boto3
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket and the prefix of an s3:// URI."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    s3 = boto3.client("s3")
    bucket, prefix = split_uri(os.environ["CHECKPOINT_URI"])

    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    first = 0
    if saved:
        body = s3.get_object(Bucket=bucket, Key=max(item["Key"] for item in saved))["Body"].read()
        state = torch.load(io.BytesIO(body), map_location=device)
        model.module.load_state_dict(state["model"])
        first = state["epoch"]

    inputs = torch.linspace(-1, 1, 256, device=device).unsqueeze(1)[rank::world]
    loss = torch.zeros(())
    for epoch in range(first, epochs):
        for _ in range(50):
            loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs + 0.5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            buffer = io.BytesIO()
            torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, buffer)
            s3.put_object(Bucket=bucket, Key=f"{prefix}epoch-{epoch + 1:04d}.pt", Body=buffer.getvalue())
            print(f"epoch {epoch + 1}: loss {loss.item():.6f}", flush=True)
        dist.barrier()

    if rank == 0:
        weight, bias = model.module.weight.item(), model.module.bias.item()
        result = {"epochs": epochs, "started_at": first, "weight": weight, "bias": bias, "world_size": world}
        bucket, prefix = split_uri(os.environ["RESULTS_URI"])
        s3.put_object(Bucket=bucket, Key=f"{prefix}line.json", Body=json.dumps(result).encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
