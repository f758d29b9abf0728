"""`control.json` in S3: written by one controller only, also while the controller of a replaced head still runs."""

from trainyard.aws.s3 import Bucket, ObjectChangedError
from trainyard.models.run import Control


class ControlFile:
    """The control file of one run, as this controller has read or written it last."""

    def __init__(self, data: Bucket, key: str) -> None:
        self._data, self._key = data, key
        self._etag: str | None = None
        self._sent = b""  # content of the last request, whose response may have been lost

    def read(self) -> Control | None:
        """Return the content; None if no controller has written it."""
        content, self._etag = self._data.find_version(self._key)
        return None if content is None else Control.model_validate_json(content)

    def write(self, control: Control) -> None:
        """Replace the content. Raises ObjectChangedError if another controller has changed it, and ClientError."""
        content = control.model_dump_json().encode()
        try:
            self._write(content)
        except ObjectChangedError:
            current, etag = self._data.find_version(self._key)
            if current not in (content, self._sent):
                raise
            self._etag = etag
            if current != content:
                self._write(content)

    def _write(self, content: bytes) -> None:
        before, self._sent = self._sent, content
        try:
            self._etag = self._data.replace(self._key, content, self._etag)
        except ObjectChangedError:
            self._sent = before
            raise
