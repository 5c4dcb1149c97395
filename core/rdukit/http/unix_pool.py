"""Requests over UNIX sockets with urllib3, which images of the node daemon lack."""

import socket
from typing import Any

import urllib3

from rdukit.http.unix_sockets import HOST


class UnixPool(urllib3.HTTPConnectionPool):
    """Pool of connections to a server at a UNIX socket."""

    def __init__(self, path: str, maxsize: int) -> None:
        """
        Args:
            path: path for the kernel, from ``SocketPath``.
            maxsize: maximum of connections that stay open between requests.
        """
        super().__init__(HOST, maxsize=maxsize)
        self._path = path

    def _new_conn(self) -> "UnixConnection":
        return UnixConnection(self._path, self.timeout.connect_timeout)


class UnixConnection(urllib3.connection.HTTPConnection):
    """Connection to a server at a UNIX socket."""

    def __init__(self, path: str, timeout: Any) -> None:
        super().__init__(HOST, timeout=timeout)
        self._path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(urllib3.Timeout.resolve_default_timeout(self.timeout))
            connection.connect(self._path)
        except OSError as cause:
            connection.close()
            raise urllib3.exceptions.NewConnectionError(self, str(cause)) from cause
        return connection
