"""References to artifacts, parsed from callers' texts (pure).

``s3://BUCKET/KEY``, ``http(s)://HOST/PATH``, ``file:///PATH`` or a path; ``#sha256=HEX`` at the end of a URI is the
required digest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of

REMOTE_SCHEMES: Final = ("s3", "http", "https")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A remote artifact."""

    scheme: str
    #: URI without the fragment.
    uri: str
    #: Host (with its port) or bucket.
    host: str
    #: Path with its query as sent in a request, or the object's key.
    path: str
    sha256: str | None = None

    @property
    def text(self) -> str:
        """Return the reference as a caller would write it."""
        return self.uri if self.sha256 is None else f"{self.uri}#sha256={self.sha256}"

    @property
    def key(self) -> str:
        """Return a key for this reference that is valid in file names."""
        return sha256_of(self.text.encode())

    @property
    def name(self) -> str:
        """Return the last part of the path as a safe file name."""
        last = unquote(self.path.partition("?")[0].rstrip("/").rpartition("/")[2]) or "artifact"
        return re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip(".")[-100:] or "artifact"

    @property
    def is_folder(self) -> bool:
        """Return whether it is an S3 prefix, which means everything below it."""
        return self.scheme == "s3" and (not self.path or self.path.endswith("/"))


def is_remote(text: str) -> bool:
    """Return whether ``text`` must be fetched, because it is neither a path nor ``file://``."""
    return text.partition("://")[0].lower() in REMOTE_SCHEMES and "://" in text


def parse_reference(text: str, what: str) -> Reference:
    """Read a remote URI.

    Raises:
        InvalidArgument: malformed, another scheme, or with a user and password in it.
    """

    def refuse(why: str) -> InvalidArgument:
        return InvalidArgument(f"{what}: {text!r} is not valid: {why}; expected s3://BUCKET/KEY or http(s)://HOST/PATH")

    if len(text) > 4096 or any(ord(letter) <= 32 or ord(letter) == 127 for letter in text):
        raise refuse("more than 4096 characters, spaces or control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as cause:
        raise refuse(str(cause)) from cause
    if parts.scheme not in REMOTE_SCHEMES:
        raise refuse(f"scheme {parts.scheme!r}")
    if "@" in parts.netloc:
        raise InvalidArgument(f"{what}: a URI must not hold a user or password: they would be logged")
    digest = parse_fragment(parts.fragment, what)
    if parts.scheme == "s3":
        key = unquote(parts.path.removeprefix("/"))
        if not _BUCKET.fullmatch(parts.netloc):
            raise refuse(
                f"{parts.netloc!r} is not a bucket's name; expected 3 to 63 lower-case letters, digits, dots "
                "and hyphens"
            )
        if parts.query:
            raise refuse("a query")
        if ".." in key.split("/"):
            raise refuse("a key with ..")
        return Reference("s3", f"s3://{parts.netloc}/{quote(key)}", parts.netloc, key, digest)
    if not parts.hostname or (port is not None and port == 0):
        raise refuse("no host")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii():
        path = quote(path, safe="/%?&=+:;,@!$'()*~._-")
    return Reference(parts.scheme, f"{parts.scheme}://{parts.netloc}{path}", parts.netloc, path, digest)


def parse_output(text: str) -> Reference:
    """Parse the target of outputs: ``s3://BUCKET/PREFIX``, with or without a slash at the end.

    Raises:
        InvalidArgument: anything else.
    """
    reference = parse_reference(text, "output")
    if reference.scheme != "s3" or reference.sha256 is not None:
        raise InvalidArgument(f"output: {text!r} is not valid; expected a path, file:///PATH or s3://BUCKET/PREFIX")
    path = reference.path if not reference.path or reference.path.endswith("/") else reference.path + "/"
    return Reference("s3", f"s3://{reference.host}/{path}", reference.host, path)


def parse_fragment(fragment: str, what: str) -> str | None:
    """Return the digest in ``sha256=HEX``; None for an empty fragment.

    Raises:
        InvalidArgument: anything else.
    """
    if not fragment:
        return None
    name, _, digest = fragment.partition("=")
    if name != "sha256" or not _SHA256.fullmatch(digest.lower()):
        raise InvalidArgument(f"{what}: fragment #{fragment} is not valid; expected #sha256= and 64 hexadecimal digits")
    return digest.lower()


def text_of(value: object, what: str) -> str:
    """Return a caller's value for an input as one text; ``{"uri": …, "sha256": …}`` is also read.

    Raises:
        InvalidArgument: the value has another form.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("uri"), str) and set(value) <= {"uri", "sha256"}:
        uri, digest = str(value["uri"]), value.get("sha256")
        if digest is None:
            return uri
        if "#" in uri or not isinstance(digest, str) or parse_fragment(f"sha256={digest}", what) is None:
            raise InvalidArgument(f"{what}: the digest is repeated; give it once")
        return f"{uri if '://' in uri else f'file://{quote(uri)}'}#sha256={digest}"
    raise InvalidArgument(f'{what}: expected a path or URI, or {{"uri": …, "sha256": …}}')
