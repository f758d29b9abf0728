"""A process group of one."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.trainer.checkpoints.states import alone


@pytest.fixture(scope="package")
def group() -> Iterator[dist.ProcessGroup]:
    with alone() as found:
        yield found
