"""UNIX sockets as addresses: ``http+unix://…`` URLs, and paths of any length.

The kernel accepts paths of up to 107 bytes. Longer ones are bound and connected to through an open folder:
``/proc/self/fd/<folder>/<name>`` is short, wherever the folder is.
"""

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from rdukit.errors import InvalidArgument
from rdukit.interfaces import Closable

#: Prefix of the percent-encoded path in the address of a REST server.
SCHEME: Final = "http+unix://"
#: Maximum bytes of a path in a socket's address, without the terminating zero.
MAX_PATH_BYTES: Final = 107
#: Socket names of a box's APIs, in the folder that the box listens in.
REST_SOCKET: Final = "rest.sock"
GRPC_SOCKET: Final = "grpc.sock"
#: Host name in requests over a UNIX socket.
HOST: Final = "localhost"


class SocketPath(Closable):
    """A path that a UNIX socket can be bound or connected by, until ``close``."""

    def __init__(self, path: Path) -> None:
        """Open the socket's folder. Raises: InvalidArgument: it cannot be opened, or the socket's name is too long."""
        #: Path to pass to the kernel.
        self.text = os.path.abspath(path)
        self._folder = -1
        if len(os.fsencode(self.text)) <= MAX_PATH_BYTES:
            return
        try:
            self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as cause:
            raise InvalidArgument(f"the folder of the socket {path} cannot be opened: {cause.strerror}") from cause
        self.text = f"/proc/self/fd/{self._folder}/{path.name}"
        if len(os.fsencode(self.text)) > MAX_PATH_BYTES:
            self.close()
            raise InvalidArgument(f"the name of the socket {path} is too long; expected up to {MAX_PATH_BYTES} bytes")

    def close(self) -> None:
        """Close the folder; bound and connected sockets stay."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


@dataclass(frozen=True, slots=True)
class WireAddress:
    """The address of a box's REST server."""

    #: For requests: ``http://HOST:PORT``, or ``http://localhost`` over a UNIX socket.
    base_url: str
    #: The socket; None: over TCP.
    path: Path | None = None


def rest_address(path: Path) -> str:
    """Return the address of a REST server at a UNIX socket (pure)."""
    return SCHEME + quote(os.path.abspath(path), safe="")


def parse_rest_address(url: str) -> WireAddress:
    """Parse the address of a REST server (pure).

    Raises:
        InvalidArgument: the text is not such an address.
    """
    url = url.rstrip("/")
    if url.startswith(("http://", "https://")):
        return WireAddress(url)
    path = unquote(url.removeprefix(SCHEME)) if url.startswith(SCHEME) else ""
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"{url!r} is not a box's address; expected http://HOST:PORT or {SCHEME}%2FPATH")
    return WireAddress(f"http://{HOST}", Path(path))


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter, or restrict an existing one to this user.

    Raises:
        InvalidArgument: the folder cannot be created, or belongs to another user.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)
    except OSError as cause:
        raise InvalidArgument(
            f"the folder {folder} cannot be made private for sockets: {cause.strerror}; pass one of your own"
        ) from cause


def listen_at(path: Path, mode: int = 0o600, backlog: int = 512, *, is_ours: bool = False) -> socket.socket:
    """Listen at a path. The socket file of a killed process is replaced.

    Args:
        is_ours: whether the path belongs to this process alone; any socket there is then replaced.

    Raises:
        InvalidArgument: another process listens there, or the path cannot be bound.
    """
    with SocketPath(path) as short:
        if not is_ours and is_listening(short.text):
            raise InvalidArgument(f"another process already listens at {path}; pass another folder")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket():
                path.unlink()
            listener.bind(short.text)
            path.chmod(mode)
            listener.listen(backlog)
        except OSError as cause:
            listener.close()
            raise InvalidArgument(
                f"the socket {path} cannot be bound: {cause.strerror}; pass another folder"
            ) from cause
    return listener


def is_listening(path: str) -> bool:
    """Return whether a server accepts connections to the socket at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
