"""TLS of the parts' wires: files that the settings name → contexts of servers and callers.

A server has a certificate and its key; with an authority it asks callers for certificates of that authority, too
(mutual TLS). A caller trusts the system's authorities, or the one that it is given, and may have a certificate itself.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit.settings import TLS_CA, TLS_CERTIFICATE, TLS_KEY, resolve


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM form that can be read."""

    certificate: Path
    key: Path
    #: Whose certificates callers must have; None: they need none.
    ca: Path | None = None


def find_server_files(certificate: str, key: str, ca: str, settings: str) -> TlsFiles | None:
    """Return a server's TLS files; None if TLS is not configured.

    Args:
        settings: name of the part in its settings, ``box`` of ``box.tls_certificate``.
    Raises:
        InvalidArgument: one is missing, cannot be read, or does not fit the other.
    """
    if not (certificate or key or ca):
        return None
    if not (certificate and key):
        raise InvalidArgument(
            f"{settings}.tls_certificate and {settings}.tls_key belong together; set both, or neither"
        )
    files = TlsFiles(Path(certificate).expanduser(), Path(key).expanduser(), Path(ca).expanduser() if ca else None)
    make_server_context(files)
    return files


def make_server_context(files: TlsFiles) -> ssl.SSLContext:
    """Create a server's context, with TLS 1.2 at least.

    Raises:
        InvalidArgument: a file cannot be read, or they do not fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, files.certificate, files.key)
    if files.ca is not None:
        _trust(context, files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str | None = None) -> ssl.SSLContext:
    """Create a caller's context by the settings.

    Args:
        ca: file with the authority to trust; None: as the setting says.
    Raises:
        InvalidArgument: a file cannot be read, or they do not fit together.
    """
    authority = resolve(TLS_CA, ca)
    certificate, key = resolve(TLS_CERTIFICATE), resolve(TLS_KEY)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authority:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _trust(context, Path(authority).expanduser())
    if certificate or key:
        if not (certificate and key):
            raise InvalidArgument("tls.certificate and tls.key belong together; set both, or neither")
        _load(context, Path(certificate).expanduser(), Path(key).expanduser())
    return context


def verify_of(url: str) -> ssl.SSLContext:
    """Return httpx's ``verify`` for ``url``. Reading authorities takes 30 ms, and a plain URL needs none."""
    return client_context() if url.startswith("https://") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_files() -> tuple[bytes | None, bytes | None, bytes | None]:
    """Read the authority, key and certificate of a caller by the settings; None: not set.

    Raises:
        InvalidArgument: a file cannot be read, or they do not fit together.
    """
    client_context()
    texts = (resolve(TLS_CA), resolve(TLS_KEY), resolve(TLS_CERTIFICATE))
    ca, key, certificate = (Path(text).expanduser().read_bytes() if text else None for text in texts)
    return ca, key, certificate


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as cause:
        raise InvalidArgument(
            f"the certificate {certificate} with the key {key} cannot be used: {_words(cause)}; legal: PEM files that "
            "belong together, the key without a password"
        ) from cause


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError, ValueError) as cause:
        message = f"the authority {ca} cannot be used: {_words(cause)}; legal: a PEM file with certificates"
        raise InvalidArgument(message) from cause


def _no_password() -> str:
    raise ValueError("the key has a password")


def _words(cause: Exception) -> str:
    return str(getattr(cause, "strerror", None) or getattr(cause, "reason", None) or cause)
