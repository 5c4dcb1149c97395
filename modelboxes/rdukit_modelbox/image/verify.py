"""Verify a complete OCI layout: digests, sizes, references, and layers against the configuration."""

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_modelbox.image.layout import ImageLayout
from rdukit_modelbox.image.media import LAYER_GZIP_TYPE, Descriptor

_BLOCK: Final = 1 << 20
_GZIP_TYPES: Final = {LAYER_GZIP_TYPE, "application/vnd.docker.image.rootfs.diff.tar.gzip"}


@dataclass(frozen=True, slots=True)
class Verified:
    """The extent of a check: the images' names, the number of blobs read, and their bytes."""

    images: tuple[str, ...]
    blobs: int
    size: int


def verify_layout(folder: Path) -> Verified:
    """Verify a layout from its index down.

    Raises:
        NotFound: not a layout, or a blob is missing.
        InvalidArgument: something does not match; the message names every such blob.
    """
    layout = ImageLayout.open(folder)
    seen: dict[str, int] = {}
    faults: list[str] = []
    references = layout.references()
    for name, descriptor in sorted(references.items()):
        try:
            faults += [f"{name}: {fault}" for fault in _faults_of(layout, descriptor, seen)]
        except RdukitError as error:
            faults.append(f"{name}: {error.message}")
    faults += _check_strays(layout, seen)
    if faults:
        raise InvalidArgument(f"{folder}: " + "; ".join(dict.fromkeys(faults)), faults=faults)
    return Verified(tuple(sorted(references)), len(seen), sum(seen.values()))


def _faults_of(layout: ImageLayout, descriptor: Descriptor, seen: dict[str, int]) -> Iterator[str]:
    yield from _check_size(layout, descriptor, seen)
    manifest, config = layout.read_image(descriptor)
    yield from _check_size(layout, Descriptor.from_json(manifest["config"]), seen)
    layers = [Descriptor.from_json(layer) for layer in manifest.get("layers", [])]
    diff_ids = _diff_ids(config)
    if len(layers) != len(diff_ids):
        yield f"{len(layers)} layers, but the configuration names {len(diff_ids)}"
    for layer, diff_id in zip(layers, diff_ids, strict=False):
        if layer.digest not in seen:
            seen[layer.digest] = layer.size
            yield from _check_layer(layout, layer, diff_id)


def _diff_ids(config: dict[str, Any]) -> list[str]:
    try:
        return [str(diff_id) for diff_id in config["rootfs"]["diff_ids"]]
    except (KeyError, TypeError) as cause:
        raise InvalidArgument("the configuration has no rootfs.diff_ids") from cause


def _check_size(layout: ImageLayout, descriptor: Descriptor, seen: dict[str, int]) -> Iterator[str]:
    size = len(layout.read_blob(descriptor))
    seen[descriptor.digest] = size
    if size != descriptor.size:
        yield f"blob {descriptor.digest} has {size} bytes; its descriptor states {descriptor.size}"


def _check_layer(layout: ImageLayout, layer: Descriptor, diff_id: str) -> Iterator[str]:
    path = layout.blob_file(layer.digest)
    if not path.is_file():
        raise NotFound(f"lacks blob {layer.digest}")
    with path.open("rb") as stream:
        digest, size = _digest(stream)
    if digest != layer.digest or size != layer.size:
        yield f"blob {layer.digest} is damaged: it has {digest}, {size} bytes"
        return
    if layer.media_type in _GZIP_TYPES:
        try:
            with gzip.open(path) as stream:
                digest, _ = _digest(stream)  # type: ignore[arg-type]
        except (OSError, EOFError) as error:
            yield f"layer {layer.digest} is not gzip: {error}"
            return
    if digest != diff_id:
        yield f"layer {layer.digest} unpacks to {digest}, but the configuration states {diff_id}"


def _digest(stream: BinaryIO) -> tuple[str, int]:
    total, size = hashlib.sha256(), 0
    while block := stream.read(_BLOCK):
        total.update(block)
        size += len(block)
    return f"sha256:{total.hexdigest()}", size


def _check_strays(layout: ImageLayout, seen: dict[str, int]) -> Iterator[str]:
    """Yield damaged blobs that no named image uses; unused blobs themselves are legal."""
    for path in sorted((layout.folder / "blobs" / "sha256").iterdir()):
        if path.name.startswith(".") or f"sha256:{path.name}" in seen:
            continue
        with path.open("rb") as stream:
            digest, seen[f"sha256:{path.name}"] = _digest(stream)
        if digest != f"sha256:{path.name}":
            yield f"blob sha256:{path.name} is damaged: it has {digest}"
