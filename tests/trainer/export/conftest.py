"""A process group with one rank."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.trainer.checkpoints.states import single_process_group


@pytest.fixture(scope="package")
def group() -> Iterator[dist.ProcessGroup]:
    with single_process_group() as process_group:
        yield process_group
