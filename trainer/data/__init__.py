"""Training data: from shards in S3, on FSx or in a folder to the micro-batches of a rank."""

from trainer.data.datasets import Data, DataError, open_data

__all__ = ["Data", "DataError", "open_data"]
