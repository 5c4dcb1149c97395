"""Webhooks that the platform sends: check a URL, sign a message, post it once.

Source: the Standard Webhooks specification, https://github.com/standard-webhooks/standard-webhooks: three headers, and
``v1,`` with the base64 of HMAC-SHA256 over ``id.timestamp.body`` for each secret that is valid.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
import socket
import ssl
from collections.abc import Sequence
from functools import cache
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.http.addresses import Network, find_refusal, is_public
from rdukit.http.answers import PLAIN

MAX_URL: Final = 2048
SECRET_PREFIX: Final = "whsec_"
#: Statuses below 500 that are worth a retry: timeout, too early, too many requests.
_TRANSIENT: Final = frozenset({408, 425, 429})


class AddressRefused(Exception):
    """The address must not be reached."""


def check_url(url: str, field: str) -> str:
    """Return ``url`` if it is valid for a webhook. Does not resolve its host. Pure.

    Raises:
        InvalidArgument: the URL is not http or https with a host; the error's detail has ``field``.
    """
    try:
        parts = urlsplit(url)
        host, port, names = parts.hostname, parts.port, parts.username
    except ValueError as cause:
        raise InvalidArgument(f"{field}: {url[:200]!r} is not a URL: {cause}", field=field) from cause
    if (
        parts.scheme not in {"http", "https"}
        or not host
        or port == 0
        or len(url) > MAX_URL
        or not url.isprintable()
        or " " in url
    ):
        expected = f"http://HOST… or https://HOST…, at most {MAX_URL} characters"
        message = f"{field}: {url[:200]!r} is not valid; expected {expected}"
        raise InvalidArgument(message, field=field)
    if names is not None:
        raise InvalidArgument(f"{field} has a user name in it; expected http://HOST… or https://HOST…", field=field)
    return url


def new_secret() -> str:
    """Create a secret of 32 random bytes, in the standard's form."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def headers_of(message_id: str, timestamp: int, body: bytes, signed_with: Sequence[str]) -> dict[str, str]:
    """Return the headers of one try, with a signature for each secret. Pure.

    Raises:
        InvalidArgument: a secret begins with ``whsec_`` and is not base64 after it.
    """
    headers = {"content-type": "application/json", "webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = [hmac.new(_key_of(secret), signed, hashlib.sha256).digest() for secret in signed_with]
    if digests:
        headers["webhook-signature"] = " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)
    return headers


def is_transient(status: int) -> bool:
    """Return whether a post that ended with this HTTP status (0: no answer) should be retried."""
    return status == 0 or status in _TRANSIENT or status >= 500


async def post_webhook(
    url: str,
    headers: dict[str, str],
    body: bytes,
    timeout_s: float,
    *,
    allowed: Sequence[Network] = (),
) -> tuple[int, str]:
    """Post once. Returns the status (0: no answer, -1: the address is refused) and, unless it is 2xx, the reason.

    The host is resolved once, and the connection goes to the address that was checked. Redirects are not followed. Only
    the head of the answer is read.

    Args:
        allowed: networks that are allowed although they are not public.
    """
    import httpx  # imported only when a webhook is posted: it takes 12 MB

    try:
        async with asyncio.timeout(timeout_s):
            return await _post(url, headers, body, allowed)
    except TimeoutError:
        return 0, f"no answer within {timeout_s:g} s"
    except (AddressRefused, RdukitError) as refused:
        return -1, str(refused)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        return 0, f"{type(error).__name__}: {error}"


async def _post(url: str, headers: dict[str, str], body: bytes, allowed: Sequence[Network]) -> tuple[int, str]:
    import httpx

    parts = urlsplit(url)
    host = parts.hostname or ""
    address = await find_address(host, parts.port or (443 if parts.scheme == "https" else 80), allowed)
    # Connect to the address that was checked: connecting to the name would resolve it a second time.
    place = f"[{address}]" if ":" in address else address
    port = f":{parts.port}" if parts.port else ""
    target = urlunsplit((parts.scheme, f"{place}{port}", parts.path or "/", parts.query, ""))
    named = f"[{host}]" if ":" in host else host
    verify = _tls() if parts.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A kept connection could be reused for another name at this address, whose certificate was not checked.
    async with (
        httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=None, verify=verify) as http,
        http.stream(
            "POST", target, content=body, headers={**headers, **PLAIN, "host": f"{named}{port}"},
            extensions={"sni_hostname": host},
        ) as answer,
    ):  # fmt: skip
        status = answer.status_code
    if 200 <= status < 300:
        return status, ""
    words = ", a redirect, which webhooks do not follow" if 300 <= status < 400 else ""
    return status, f"the receiver answered {status}{words}"


@cache
def _tls() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context(trust_env=False)


async def find_address(host: str, port: int, allowed: Sequence[Network] = ()) -> str:
    """Return an address of ``host`` that may be reached.

    Raises:
        AddressRefused: one of its addresses is neither public nor allowed. The error does not contain the address,
            which would show callers how names resolve in this network.
        OSError: the host has no address.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(place[0]) for *_, place in found]
    for address in addresses:
        number = ipaddress.ip_address(address.partition("%")[0])
        if not is_public(address) and find_refusal(number, allowed) is None:
            raise AddressRefused(f"{host} is not at a public address, and no setting allows its network")
    return addresses[0]


def _key_of(secret: str) -> bytes:
    """Return the bytes of a secret: base64 after ``whsec_``, otherwise the text itself."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as cause:
        raise InvalidArgument(
            f"the webhook's secret begins with {SECRET_PREFIX}, but its rest is not base64"
        ) from cause
