"""Converts text and images into shards with an index: `python -m trainer.prepare`. It does not need torch."""
