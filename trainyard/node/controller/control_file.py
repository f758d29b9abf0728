"""`control.json` in S3. A controller overwrites no changes of another controller, such as that of a replaced head."""

from trainyard.aws.s3 import Bucket, ObjectChangedError
from trainyard.models.run import Control


class ControlFile:
    """The control file of one run, as this controller has read or written it last."""

    def __init__(self, data: Bucket, key: str) -> None:
        self._data, self._key = data, key
        self._etag: str | None = None
        self._unconfirmed: list[bytes] = []  # contents of requests without a response: S3 may have stored any of them

    def read(self) -> Control | None:
        """Return the content; None if no controller has written it."""
        content, self._etag = self._data.find_version(self._key)
        return None if content is None else Control.model_validate_json(content)

    def write(self, control: Control) -> None:
        """Replace the content. Raises ObjectChangedError if another controller has changed it, and ClientError."""
        content = control.model_dump_json().encode()
        self._unconfirmed.append(content)
        try:
            self._etag = self._data.replace(self._key, content, self._etag)
        except ObjectChangedError:
            current, etag = self._data.find_version(self._key)
            if etag != self._etag and current not in self._unconfirmed:
                raise
            self._etag = etag if current == content else self._data.replace(self._key, content, etag)
        self._unconfirmed.clear()
