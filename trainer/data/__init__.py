"""Samples to train on: from shards in S3, on FSx or in a folder to a rank's micro-batches."""

from trainer.data.opening import Data, DataError, open_data

__all__ = ["Data", "DataError", "open_data"]
