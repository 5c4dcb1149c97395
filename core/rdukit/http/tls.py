"""TLS of the parts' connections: creates contexts of servers and callers from the files in the settings.

A server has a certificate and its key; with an authority it also requires callers' certificates (mutual
TLS). A caller trusts the system's authorities, or a given one, and may have a certificate itself.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit.settings import TLS_CA, TLS_CERTIFICATE, TLS_KEY, resolve


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Readable files in PEM form."""

    certificate: Path
    key: Path
    #: Authority of callers' certificates; None: callers need no certificate.
    ca: Path | None = None


def find_server_files(certificate: str, key: str, ca: str, settings: str) -> TlsFiles | None:
    """Return a server's TLS files; None if TLS is not configured.

    Args:
        settings: prefix of the part's settings, such as ``box`` in ``box.tls_certificate``.
    Raises:
        InvalidArgument: a file is missing or cannot be read, or certificate and key do not match.
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
        InvalidArgument: a file cannot be read, or certificate and key do not match.
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
    """Create a caller's context from the settings.

    Args:
        ca: file with the authority to trust; None: that of the setting.
    Raises:
        InvalidArgument: a file cannot be read, or certificate and key do not match.
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
    """Return authority, key and certificate of a caller from the settings; None: not set.

    Raises:
        InvalidArgument: a file cannot be read, or certificate and key do not match.
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
            f"the certificate {certificate} with the key {key} cannot be used: {_words(cause)}; expected "
            "PEM files that "
            "belong together, the key without a password"
        ) from cause


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError, ValueError) as cause:
        message = f"the authority {ca} cannot be used: {_words(cause)}; expected a PEM file with certificates"
        raise InvalidArgument(message) from cause


def _no_password() -> str:
    raise ValueError("the key has a password")


def _words(cause: Exception) -> str:
    return str(getattr(cause, "strerror", None) or getattr(cause, "reason", None) or cause)
