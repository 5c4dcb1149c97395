"""``rdukit up`` from its lock to its end."""

import fcntl
import http.client
import json
import logging
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Final

from rdukit.errors import Conflict, RdukitError, Unavailable
from rdukit.files.atomic import write_json_atomic
from rdukit.http.tls import client_context
from rdukit.settings import HOME, LOG_LEVEL, resolve
from rdukit.telemetry.spans import name_service
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.settings import GATEWAY_TLS_CERTIFICATE, Home
from rdukit_platform.up.supervisor import Supervisor, list_children

logger = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Running:
    """Addresses of a platform that is ready."""

    url: str
    console: str
    docs: str
    home: str
    token_file: str
    pid: int
    pids: dict[str, int]
    ready_s: float


def run_platform(home: Home, host: str, port: int, announce: Callable[[Running], None]) -> None:
    """Start everything, call ``announce`` when it is ready, and stay until SIGTERM or Ctrl-C; then stop everything.

    Raises:
        Conflict: another ``rdukit up`` has this home, or the port is taken.
        Unavailable: a part does not start; the message has its last output.
    """
    began = time.monotonic()
    name_service("up")
    lock = take_lock(home)
    stopping = False

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask_to_stop)
    listener = _listen(host, port)
    try:
        home.broker.mkdir(mode=0o700, exist_ok=True)
        url = gateway_url(host, listener.getsockname()[1])
        environment = {**os.environ, HOME.variable: str(home.folder)}
        environment.setdefault(LOG_LEVEL.variable, "INFO")
        supervisor = Supervisor(list_children(home, listener.fileno()), home.logs, environment)
        try:
            supervisor.start()
            if not supervisor.watch(lambda: stopping or _is_ready(url), READY_TIMEOUT_S):
                raise Unavailable(_why_not_ready(url, home, supervisor))
            if stopping:
                return
            running = Running(
                url=url,
                console=f"{url}/console",
                docs=f"{url}/docs",
                home=str(home.folder),
                token_file=str(home.token_file),
                pid=os.getpid(),
                pids=supervisor.pids(),
                ready_s=round(time.monotonic() - began, 2),
            )
            write_json_atomic(home.address_file, asdict(running), mode=0o600)
            announce(running)
            supervisor.watch(lambda: stopping)
        finally:
            home.address_file.unlink(missing_ok=True)
            supervisor.stop()
    finally:
        listener.close()
        os.close(lock)


def take_lock(home: Home) -> int:
    """Lock the home folder for this process while the returned descriptor is open.

    Raises:
        Conflict: another process has it.
    """
    descriptor = os.open(home.up_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        holder = home.up_lock.read_text().strip()
        os.close(descriptor)
        raise Conflict(
            f"a platform already runs in {home.folder} (process {holder or 'unknown'}); stop it, or set RDUKIT_HOME"
        ) from cause
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as cause:
        raise Conflict(
            f"cannot listen on {host}:{port} ({cause.strerror}); choose another with --port; 0: any free port"
        ) from cause


def gateway_url(host: str, port: int) -> str:
    """Return the URL of a gateway that listens there, for this machine."""
    scheme = "https" if resolve(GATEWAY_TLS_CERTIFICATE) else "http"
    return f"{scheme}://{'127.0.0.1' if host in {'0.0.0.0', '::'} else host}:{port}"


def _is_ready(url: str) -> bool:
    return read_health(url).get("status") == "ready"


def read_health(url: str) -> dict[str, object]:
    """Return the gateway's report on its parts, even if some are unreachable; empty if no gateway answers."""
    context = client_context() if url.startswith("https://") else None
    body: object = None
    with suppress(OSError, ValueError, http.client.HTTPException):
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=4.0, context=context) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                body = json.load(error)
    return body if isinstance(body, dict) else {}


def _why_not_ready(url: str, home: Home, supervisor: Supervisor) -> str:
    parts = read_health(url).get("parts", "the gateway does not answer")
    store, why = open_store(home), ""
    if isinstance(store, S3Store):
        try:
            store.probe()
        except RdukitError as error:
            why = f"; {error.message}"
    return (
        f"the platform was not ready after {READY_TIMEOUT_S:g} s: {parts}{why}; logs are in {home.logs}\n"
        f"{supervisor.last_words()}"
    ).rstrip()
