"""Refusal of requests that a web browser sends: no client of a rehearsal is one.

A page on any site can send requests to a port of this machine. Its requests have the header Origin
(https://fetch.spec.whatwg.org/#origin-header), or, after DNS rebinding, the name of that site as their host.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit


def reason_to_refuse(host: str | None, origin: str | None) -> str | None:
    """Return why a request with these headers is refused; None if it is not.

    The host must be localhost or a loopback or link-local address: booted nodes use link-local addresses.
    """
    if origin is not None:
        return f"the header Origin ({origin}): requests of web pages are refused"
    return None if _is_local(host or "") else f"the host {host}: not an address of this machine"


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        address = ip_address(name)
    except ValueError:
        return host.partition(":")[0] == "localhost"
    return address.is_loopback or address.is_link_local
