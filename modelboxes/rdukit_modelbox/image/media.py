"""Names and values of the OCI image format that the other files share."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rdukit.errors import InvalidArgument

INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP_TYPE: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
REFERENCE_KEY: Final = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob's place and kind: its media type, ``sha256:…`` digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the descriptor as in a manifest or an index."""
        value: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Descriptor":
        """Parse a descriptor.

        Raises:
            InvalidArgument: a key is missing, or the digest is not a SHA-256.
        """
        try:
            digest, size = str(value["digest"]), int(value["size"])
            annotations = {str(k): str(v) for k, v in (value.get("annotations") or {}).items()}
        except (KeyError, TypeError, ValueError) as cause:
            raise InvalidArgument(f"not a descriptor of a blob: {value!r}") from cause
        if not is_sha256(digest):
            raise InvalidArgument(f"digest {digest!r} is not valid; expected sha256: and 64 hexadecimal digits")
        return cls(str(value.get("mediaType", "")), digest, size, annotations)


def is_sha256(digest: str) -> bool:
    """Return whether it is ``sha256:`` and 64 lowercase hex digits: only such a digest may become part of a path."""
    kind, _, hexadecimal = digest.partition(":")
    return kind == "sha256" and len(hexadecimal) == 64 and not set(hexadecimal) - set("0123456789abcdef")


def compact_json(value: object) -> bytes:
    """Return a value as canonical JSON (sorted keys, no spaces), so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def build_seconds(environment: Mapping[str, str] | None = None) -> int:
    """Return the seconds since 1970 that date every file and image: ``SOURCE_DATE_EPOCH``, or 0.

    Raises:
        InvalidArgument: the variable is not a whole number of at least 0.
    Source:
        reproducible-builds.org, "SOURCE_DATE_EPOCH".
    """
    text = (os.environ if environment is None else environment).get("SOURCE_DATE_EPOCH", "0")
    if not text.isdecimal():
        raise InvalidArgument(f"SOURCE_DATE_EPOCH={text!r} is not valid; expected seconds since 1970, a whole number")
    return int(text)


def build_time(seconds: int) -> str:
    """Return a time in the format of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine_name(machine: str) -> str:
    """Return the format's name of a processor: ``amd64`` for ``x86_64``."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
