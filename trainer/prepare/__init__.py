"""Text and images into shards with an index (contract.dataset): `python -m trainer.prepare`. It needs no torch."""
