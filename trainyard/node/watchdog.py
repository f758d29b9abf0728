"""The watchdog of systemd: it kills and restarts a service that sends no notification for WatchdogSec."""

import os
import socket
import threading
import time
from contextlib import suppress

# A request to AWS may take a minute, and its retries as long.
MAIN_THREAD_SECONDS = 120.0
_progress_at = time.monotonic()


def start_watchdog(main_thread_seconds: float = MAIN_THREAD_SECONDS) -> None:
    """Notify systemd from another thread, as long as the main thread reports progress. Does nothing without systemd.

    A suspended process is restarted after WatchdogSec, one whose main thread hangs `main_thread_seconds` later.
    Protocol: sd_notify(3), https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
    """
    address, microseconds = os.environ.get("NOTIFY_SOCKET"), os.environ.get("WATCHDOG_USEC")
    if address is None or microseconds is None:
        return
    if address.startswith("@"):  # an abstract address
        address = f"\0{address[1:]}"
    interval = float(microseconds) / 1e6 / 4
    arguments = (address, interval, main_thread_seconds)
    threading.Thread(target=_notify, args=arguments, name="watchdog", daemon=True).start()


def _notify(address: str, interval: float, main_thread_seconds: float) -> None:
    while True:
        if time.monotonic() < _progress_at + main_thread_seconds:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification, suppress(OSError):
                notification.sendto(b"WATCHDOG=1", address)
        time.sleep(interval)


def report_progress() -> None:
    """Report that the main thread makes progress. Does nothing in another thread."""
    global _progress_at
    if threading.current_thread() is threading.main_thread():
        _progress_at = time.monotonic()
