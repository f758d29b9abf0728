"""Convert text and images into shards with an index: `python -m trainer.prepare`. It needs no torch."""
