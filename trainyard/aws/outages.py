"""Which errors show that a service does not respond now, so that the same request may succeed later."""

import re

from botocore import exceptions

SERVER_ERROR, TOO_MANY_REQUESTS = 500, 429
# Error codes of throttled requests (AWS SDKs and Tools Reference Guide, "Retry behavior").
_THROTTLED = re.compile(r"Throttl|TooManyRequests|RequestLimitExceeded|SlowDown|BandwidthLimitExceeded")
_CONNECTION_ERRORS = (
    ConnectionError,
    TimeoutError,
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
    exceptions.CredentialRetrievalError,
)


def is_outage(error: BaseException) -> bool:
    """Return whether a service does not respond, throttles the request, or fails itself."""
    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        is_throttled = _THROTTLED.search(error.response["Error"]["Code"]) is not None
        return is_throttled or status >= SERVER_ERROR or status == TOO_MANY_REQUESTS
    return isinstance(error, _CONNECTION_ERRORS)
