"""A storage that does not respond."""

from pathlib import Path
from threading import Event

from trainer.storage import LocalStorage


class BlockedStorage(LocalStorage):
    """Uploads wait for `response`, at most a minute. `uploads`: the key of each, and whether it may use threads."""

    def __init__(self) -> None:
        super().__init__("s3", "RESULTS_URI")
        self.response = Event()
        self.uploads: list[tuple[str, bool]] = []

    def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
        self.uploads.append((key, threads))
        self.response.wait(60)
