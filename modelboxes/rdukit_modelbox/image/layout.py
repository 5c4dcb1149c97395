"""An OCI image layout: a folder with ``oci-layout``, ``index.json`` and blobs by digest.

Blobs are written before references to them, and each file atomically, so a crash leaves the layout valid.
Source: OCI Image Format Specification 1.1, "Image Layout".
"""

import fcntl
import gzip
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, sha256_of, write_atomic
from rdukit_modelbox.image.layer import LayerEntry, write_layer
from rdukit_modelbox.image.media import (
    INDEX_TYPE,
    LAYER_GZIP_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    REFERENCE_KEY,
    Descriptor,
    compact_json,
    is_sha256,
)

LAYOUT_FILE: Final = "oci-layout"
INDEX_FILE: Final = "index.json"
#: Name of the base in a layout; the other images are boxes.
BASE_REFERENCE: Final = "rdukit-base"
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """A layer that is in a layout: its blob, and the digest of its tar before compression."""

    descriptor: Descriptor
    diff_id: str


class ImageLayout:
    """A layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> "ImageLayout":
        """Return a layout at ``folder``: the existing one, or a new empty one.

        Raises:
            InvalidArgument: the folder is there and holds something else.
        """
        layout = cls(folder)
        if (folder / LAYOUT_FILE).is_file():
            return layout
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidArgument(f"{folder} is not an OCI layout and not empty; pass a new folder")
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        write_atomic(folder / INDEX_FILE, compact_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}))
        write_atomic(folder / LAYOUT_FILE, compact_json({"imageLayoutVersion": "1.0.0"}))
        return layout

    @classmethod
    def open(cls, folder: Path) -> "ImageLayout":
        """Return the layout at ``folder``.

        Raises:
            NotFound: the folder is not a layout.
            InvalidArgument: of a version that is not known.
        """
        try:
            value = json.loads((folder / LAYOUT_FILE).read_bytes())
        except (OSError, ValueError) as cause:
            raise NotFound(f"{folder} is not an OCI layout: it has no readable {LAYOUT_FILE}") from cause
        if not isinstance(value, dict) or value.get("imageLayoutVersion") != "1.0.0":
            raise InvalidArgument(f"{folder} has layout version {value!r}; expected 1.0.0")
        return cls(folder)

    def blob_file(self, digest: str) -> Path:
        """Return the path of a blob.

        Raises:
            InvalidArgument: not a SHA-256 digest.
        """
        if not is_sha256(digest):
            raise InvalidArgument(f"digest {digest!r} is not valid; expected sha256: and 64 hexadecimal digits")
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def read_blob(self, descriptor: Descriptor) -> bytes:
        """Return a blob's bytes, checked.

        Raises:
            NotFound: the blob is missing.
            InvalidArgument: its digest is another one.
        """
        try:
            data = self.blob_file(descriptor.digest).read_bytes()
        except OSError as cause:
            raise NotFound(f"{self.folder} lacks blob {descriptor.digest}") from cause
        if f"sha256:{sha256_of(data)}" != descriptor.digest:
            raise InvalidArgument(f"{self.folder}: blob {descriptor.digest} is damaged; build the layout again")
        return data

    def add_blob(self, media_type: str, data: bytes) -> Descriptor:
        """Add ``data``, unless it exists."""
        digest = f"sha256:{sha256_of(data)}"
        if not self.blob_file(digest).exists():
            write_atomic(self.blob_file(digest), data)
        return Descriptor(media_type, digest, len(data))

    def add_layer(self, entries: Iterable[LayerEntry], seconds: int, is_compressed: bool = False) -> ImageLayer:
        """Write a layer with ``entries``.

        Uncompressed by default: gzip's bytes depend on the library version, a tar's do not.
        """
        # Its name is known only after writing, so atomic_target cannot be used.
        temporary = self.folder / "blobs" / f".layer.{os.getpid()}.{secrets.token_hex(4)}.part"
        try:
            with temporary.open("wb") as stream:
                outer = inner = _Digesting(stream)
                if is_compressed:
                    with gzip.GzipFile("", "wb", 1, outer, mtime=0) as packed:
                        inner = _Digesting(packed)  # type: ignore[arg-type]
                        write_layer(entries, inner, seconds)  # type: ignore[arg-type]
                else:
                    write_layer(entries, outer, seconds)  # type: ignore[arg-type]
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self.blob_file(outer.digest))
        finally:
            temporary.unlink(missing_ok=True)
        media_type = LAYER_GZIP_TYPE if is_compressed else LAYER_TYPE
        return ImageLayer(Descriptor(media_type, outer.digest, outer.size), inner.digest)

    def references(self) -> dict[str, Descriptor]:
        """Return the images by their names in the index."""
        return {d.annotations[REFERENCE_KEY]: d for d in self._manifests() if REFERENCE_KEY in d.annotations}

    def find(self, reference: str | None = None) -> Descriptor:
        """Return the image named ``reference``; or, if that is ``None``, the only one except the base.

        Raises:
            NotFound: no image matches, or several do; the message has the names.
        """
        found = self.references()
        boxes = [name for name in found if name != BASE_REFERENCE or len(found) == 1]
        if reference is None and len(boxes) == 1:
            return found[boxes[0]]
        if reference is not None and reference in found:
            return found[reference]
        names = ", ".join(sorted(found)) or "none"
        what = f"no image {reference!r}" if reference is not None else "no image"
        if reference is None and boxes:
            what = "images of several boxes; choose one with --tag"
        raise NotFound(f"{self.folder} has {what}; there: {names}")

    def read_image(self, descriptor: Descriptor) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an image's manifest and its configuration."""
        manifest = json.loads(self.read_blob(descriptor))
        if not isinstance(manifest, dict) or "config" not in manifest:
            raise InvalidArgument(f"{self.folder}: {descriptor.digest} is not an image's manifest")
        config = json.loads(self.read_blob(Descriptor.from_json(manifest["config"])))
        return manifest, config

    def set_reference(self, reference: str, descriptor: Descriptor, annotations: Mapping[str, str]) -> None:
        """Name ``descriptor`` as ``reference`` in the index, in place of an earlier image of this name."""
        named = Descriptor(
            descriptor.media_type, descriptor.digest, descriptor.size, {**annotations, REFERENCE_KEY: reference}
        )
        with self._locked():
            kept = [d for d in self._manifests() if d.annotations.get(REFERENCE_KEY) != reference]
            kept.append(named)
            kept.sort(key=lambda d: (d.annotations.get(REFERENCE_KEY, ""), d.digest))
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [d.as_json() for d in kept]}
            write_atomic(self.folder / INDEX_FILE, compact_json(index))

    def take(self, other: "ImageLayout", descriptor: Descriptor) -> None:
        """Copy a blob of another layout, as a hard link if possible.

        Raises:
            NotFound: the other one lacks it.
        """
        target = self.blob_file(descriptor.digest)
        if target.exists():
            return
        source = other.blob_file(descriptor.digest)
        if not source.is_file():
            raise NotFound(f"{other.folder} lacks blob {descriptor.digest}")
        try:
            os.link(source, target)
        except OSError:
            with atomic_target(target) as temporary:
                shutil.copyfile(source, temporary)

    def _manifests(self) -> list[Descriptor]:
        try:
            index = json.loads((self.folder / INDEX_FILE).read_bytes())
            return [Descriptor.from_json(entry) for entry in index["manifests"]]
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise InvalidArgument(f"{self.folder / INDEX_FILE} is not an index of images") from cause

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "blobs" / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Digesting:
    """A writable stream that computes digest and size of its bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Write, and update digest and size."""
        self._hash.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""

    @property
    def digest(self) -> str:
        """Return ``sha256:…`` of all bytes so far."""
        return f"sha256:{self._hash.hexdigest()}"


def manifest_blob(config: Descriptor, layers: Iterable[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """Return a manifest's bytes."""
    return compact_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.as_json(),
            "layers": [layer.as_json() for layer in layers],
            "annotations": dict(annotations),
        }
    )
