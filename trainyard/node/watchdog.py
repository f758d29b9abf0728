"""The watchdog of systemd: it kills and restarts a service whose main thread makes no progress for WatchdogSec."""

import os
import socket
import threading
from contextlib import suppress


def report_progress() -> None:
    """Report to systemd that this service makes progress. Does nothing in another thread, or without systemd.

    Protocol: sd_notify(3), https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if address is None or threading.current_thread() is not threading.main_thread():
        return
    if address.startswith("@"):  # an abstract address
        address = f"\0{address[1:]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification, suppress(OSError):
        notification.sendto(b"WATCHDOG=1", address)
