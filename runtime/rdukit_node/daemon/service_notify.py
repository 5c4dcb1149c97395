"""Telling a service manager how the daemon is: ready, stopping, alive. Without one, nothing happens.

Source: the protocol of sd_notify(3): one datagram of ``NAME=value`` lines to the socket in ``$NOTIFY_SOCKET``.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import RdukitError
from rdukit.snd import SndClient

logger = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"
_SOCKET: Final = "NOTIFY_SOCKET"


def notify(*lines: str, environ: Mapping[str, str] | None = None) -> bool:
    """Send ``lines`` such as ``READY``. Returns whether somebody was told; never raises, never waits."""
    address = (os.environ if environ is None else environ).get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send("\n".join(lines).encode())
    except (OSError, ValueError) as error:
        logger.warning("event=notify-failed socket=%s error=%s", address, error)
        return False
    return True


def notify_ready(status: str) -> bool:
    """The daemon answers from now on. ``status``: what ``systemctl status`` shows."""
    return notify(READY, f"MAINPID={os.getpid()}", f"STATUS={' '.join(status.split())}")


def notify_stopping() -> bool:
    """The daemon is about to end, on purpose."""
    return notify(STOPPING)


@contextlib.contextmanager
def watchdog(daemon: Path, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within the block, tell the manager that the daemon lives, as often as it wants and only while it answers.

    A thread asks over the daemon's own socket: if the loop hangs, the manager hears nothing and starts it again.
    """
    interval_s = watchdog_interval_s(environ)
    if interval_s is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(daemon, interval_s, ended, environ), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(interval_s)


def _watch(daemon: Path, interval_s: float, ended: threading.Event, environ: Mapping[str, str] | None) -> None:
    while not ended.is_set():
        try:
            with SndClient(daemon, interval_s) as client:
                client.call("hello")
            notify(WATCHDOG, environ=environ)
        except RdukitError as error:
            logger.warning("event=watchdog-unanswered error=%s", error.message)
        ended.wait(interval_s / 2)


def watchdog_interval_s(environ: Mapping[str, str] | None = None) -> float | None:
    """Send ``WATCHDOG`` at least so often: half of what the manager waits. ``None``: it does not watch this process."""
    found = os.environ if environ is None else environ
    with contextlib.suppress(ValueError):
        limit_us = int(found.get("WATCHDOG_USEC", "0"))
        watched = int(found.get("WATCHDOG_PID", "0")) or os.getpid()
        if limit_us > 0 and watched == os.getpid() and found.get(_SOCKET):
            return limit_us / 2e6
    return None
