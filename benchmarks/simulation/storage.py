"""A bucket in memory, with the methods that the controller of a run uses."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import MappingProxyType

from botocore.exceptions import ClientError

from trainyard.aws.s3 import Bucket, ObjectChangedError

# The controller reads the results since the last health check that passed. Those of 2,048 nodes have a megabyte each.
_RETAINED_CHECKS = 10


def _etag(content: bytes) -> str:
    return sha256(content).hexdigest()


class MemoryBucket(Bucket):
    """Objects of one bucket in memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._objects: dict[str, bytes] = {}
        self._keys: list[str] = []
        self._checks: list[str] = []

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys below a prefix, in order; those after the key `after`."""
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        for position in range(first, len(self._keys)):
            if not self._keys[position].startswith(prefix):
                return
            yield self._keys[position]

    def read(self, key: str) -> bytes:
        """Return the content of an object. Raises ClientError when it does not exist."""
        if key not in self._objects:
            raise ClientError({"Error": {"Code": "NoSuchKey", "Message": key}}, "GetObject")
        return self._objects[key]

    def write(self, key: str, content: bytes, metadata: Mapping[str, str] = MappingProxyType({})) -> None:
        """Create or replace an object. Its metadata is not stored."""
        if key not in self._objects:
            insort(self._keys, key)
            if "/health_checks/" in key:
                self._checks.append(key)
        self._objects[key] = content
        while len(self._checks) > _RETAINED_CHECKS:
            self.delete(self._checks.pop(0))

    def find_version(self, key: str) -> tuple[bytes | None, str | None]:
        """Return the content of an object and its ETag; None for both when it does not exist."""
        content = self._objects.get(key)
        return content, None if content is None else _etag(content)

    def replace(self, key: str, content: bytes, etag: str | None) -> str:
        """Replace the version of an object with this ETag, or create it for None; return the new ETag."""
        if self.find_version(key)[1] != etag:
            raise ObjectChangedError(key)
        self.write(key, content)
        return _etag(content)

    def delete(self, key: str) -> None:
        """Delete an object."""
        del self._objects[key]
        del self._keys[bisect_left(self._keys, key)]
