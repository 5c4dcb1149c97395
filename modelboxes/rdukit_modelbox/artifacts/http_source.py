"""Bytes over HTTP. Uses the standard library's client, because the connected address must be checked."""

import http.client
import ssl
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urljoin, urlsplit

from rdukit import __version__
from rdukit.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from rdukit.http.addresses import Network, connect_allowed
from rdukit_modelbox.artifacts.download import Opened, TransferInterrupted
from rdukit_modelbox.artifacts.reference import Reference, parse_reference

BLOCK: Final = 1 << 20
MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpSource:
    """A file behind an ``http`` or ``https`` URI. Redirects are followed, each hop checked like the first."""

    def __init__(
        self, reference: Reference, timeout_s: float, refused: Sequence[Network], allowed: Sequence[Network] = ()
    ) -> None:
        self._reference = reference
        self._timeout_s = timeout_s
        self._refused, self._allowed = refused, allowed

    def open(self, start: int, validator: str | None) -> Opened:
        """``Source.open``."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and validator is not None:
            headers["If-Range"] = validator
        connection, response = self._ask("GET", headers)
        try:
            return self._opened(connection, response, start)
        except BaseException:
            connection.close()
            raise

    def find_validator(self) -> str | None:
        """``Source.find_validator``."""
        try:
            connection, response = self._ask("HEAD", {})
        except (TransferInterrupted, Unavailable, NotFound):
            return None
        connection.close()
        return _validator(response) if response.status == 200 else None

    def _opened(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, start: int) -> Opened:
        uri = self._reference.uri
        match response.status:
            case 200:
                start, size = 0, _number(response.getheader("Content-Length"))
            case 206:
                unit, _, rest = (response.getheader("Content-Range") or "").partition(" ")
                first, _, total = rest.partition("/")
                if unit != "bytes" or _number(first.partition("-")[0]) != start:
                    raise Unavailable(f"{uri} sent a different range than requested")
                size = _number(total)
            case 416:
                raise TransferInterrupted("the content became shorter")
            case 404 | 410:
                raise NotFound(f"{uri} does not exist (HTTP {response.status})")
            case 401 | 403 | 407:
                raise PermissionDenied(f"{uri} refuses this box (HTTP {response.status})")
            case status if status in _AGAIN:
                raise TransferInterrupted(f"HTTP {status}")
            case status:
                raise Unavailable(f"{uri} answered HTTP {status}")
        if response.getheader("Content-Encoding", "identity") != "identity":
            raise Unavailable(f"{uri} is encoded although the request excluded that; serve it without encoding")
        left = None if size is None else size - start
        return Opened(start, size, _validator(response), _blocks(connection, response, left))

    def _ask(self, method: str, headers: dict[str, str]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        here = self._reference
        for _ in range(MAX_REDIRECTS + 1):
            connection, response = self._ask_once(here, method, headers)
            if response.status not in _REDIRECTS:
                return connection, response
            connection.close()
            target = urljoin(here.uri, response.getheader("Location") or "")
            if here.scheme == "https" and not target.startswith("https://"):
                raise PermissionDenied(
                    f"{here.uri} redirects from https to {target.partition(':')[0]}, which is refused"
                )
            if urlsplit(target).scheme not in {"http", "https"}:
                raise PermissionDenied(f"{here.uri} redirects to another scheme, which is refused")
            here = parse_reference(target.partition("#")[0], "redirect")
        raise InvalidArgument(f"{self._reference.uri} redirects more than {MAX_REDIRECTS} times")

    def _ask_once(
        self, reference: Reference, method: str, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(reference.uri)
        host, is_tls = str(parts.hostname), reference.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            plain = connect_allowed(host, port, self._timeout_s, self._refused, self._allowed)
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if is_tls else plain
            given = {"Accept-Encoding": "identity", "User-Agent": f"rdukit/{__version__}", **headers}
            connection.request(method, reference.path, headers=given)
            return connection, connection.getresponse()
        except ssl.SSLCertVerificationError as cause:
            connection.close()
            raise PermissionDenied(
                f"this box does not trust the certificate of {host}: {cause.verify_message}"
            ) from cause
        except (OSError, http.client.HTTPException) as cause:
            connection.close()
            raise TransferInterrupted(f"{type(cause).__name__}: {cause}") from cause
        except BaseException:
            connection.close()
            raise


def _blocks(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, left: int | None
) -> Iterator[bytes]:
    try:
        while block := response.read1(BLOCK):
            if left is not None:
                left -= len(block)
            yield block
    except (OSError, http.client.HTTPException) as cause:
        raise TransferInterrupted(f"{type(cause).__name__}: {cause}") from cause
    finally:
        connection.close()
    if left is not None and left > 0:
        raise TransferInterrupted(f"cut {left} bytes before the end")


def _validator(response: http.client.HTTPResponse) -> str | None:
    tag = response.getheader("ETag")
    # A weak tag means equivalent content, not equal bytes.
    return tag if tag and not tag.startswith("W/") else response.getheader("Last-Modified")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None
