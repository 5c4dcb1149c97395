"""Build a box's image without an engine: its layer on a base, as an OCI layout. The same input gives the same bytes."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.image.config import box_config
from rdukit_modelbox.image.contents import BoxContents, read_contents
from rdukit_modelbox.image.installed import make_installed_base
from rdukit_modelbox.image.layout import ImageLayout, manifest_blob
from rdukit_modelbox.image.media import (
    CONFIG_TYPE,
    LAYER_GZIP_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    build_seconds,
    compact_json,
    machine_name,
)

#: Name of the base made from this installation.
INSTALLED: Final = "installed"
WAYS_TO_A_BASE: Final = (
    "expected 'installed' (made from this Python and its packages), or oci:FOLDER[:NAME], which "
    "`skopeo copy docker-daemon:rdukit/modelbox:latest oci:FOLDER:base`, "
    "`skopeo copy docker://REGISTRY/rdukit/modelbox oci:FOLDER:base` and an earlier `rdukit box build` make"
)


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image in a layout."""

    box: str
    layout: Path
    reference: str
    digest: str
    #: Bytes that the box adds to its base: layer, configuration and manifest.
    added_bytes: int
    layers: int

    def as_json(self) -> dict[str, object]:
        """Return the fields as a JSON object, for machines."""
        return {
            "box": self.box, "layout": str(self.layout), "reference": self.reference, "digest": self.digest,
            "added_bytes": self.added_bytes, "layers": self.layers,
        }  # fmt: skip


def build_layout(box: str, output: Path, base: str = INSTALLED, reference: str | None = None) -> BuiltImage:
    """Put ``box`` on ``base`` and write the image to the layout ``output`` under ``reference`` (the box's name).

    Args:
        base: ``installed`` or ``oci:FOLDER[:NAME]``; the folder may be ``output`` itself.

    Raises:
        NotFound: no such box, base or layout.
        InvalidArgument: the box or the base cannot be used; the message has the reason and the expected values.
    """
    contents = read_contents(box)
    seconds = build_seconds()
    if base != INSTALLED:
        parse_base(base)
    layout = ImageLayout.create(output)
    if base == INSTALLED:
        manifest, config = layout.read_image(make_installed_base(layout, seconds))
    else:
        manifest, config = _take_base(layout, base)
    return _put_on(layout, manifest, config, contents, reference or contents.box.name, seconds)


def parse_base(base: str) -> tuple[Path, str | None]:
    """Return folder and name of ``oci:FOLDER[:NAME]``.

    Raises:
        InvalidArgument: the text has another form.
    """
    kind, _, rest = base.partition(":")
    folder, _, name = rest.partition(":")
    if kind != "oci" or not folder:
        raise InvalidArgument(f"base {base!r} is not valid without an engine; {WAYS_TO_A_BASE}")
    return Path(folder), name or None


def _take_base(layout: ImageLayout, base: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Copy the base's layers into the layout. Returns its manifest and configuration, which are not copied."""
    folder, name = parse_base(base)
    source = ImageLayout.open(folder)
    descriptor = source.find(name)
    manifest, config = source.read_image(descriptor)
    architecture = machine_name(platform.machine())
    if config.get("architecture") != architecture or config.get("os") != "linux":
        found = f"{config.get('os')}/{config.get('architecture')}"
        raise InvalidArgument(f"base {base} is for {found}; expected linux/{architecture}")
    for layer in manifest["layers"]:
        layout.take(source, Descriptor.from_json(layer))
    return manifest, config


def _put_on(
    layout: ImageLayout,
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    contents: BoxContents,
    reference: str,
    seconds: int,
) -> BuiltImage:
    layers = [_oci_layer(Descriptor.from_json(layer)) for layer in manifest["layers"]]
    layer = layout.add_layer(contents.entries(), seconds)
    grown = box_config(config, contents.labels, layer.diff_id, seconds)
    config_blob = layout.add_blob(CONFIG_TYPE, compact_json(grown))
    data = manifest_blob(config_blob, [*layers, layer.descriptor], contents.labels)
    image = layout.add_blob(MANIFEST_TYPE, data)
    layout.set_reference(reference, image, {})
    added = layer.descriptor.size + config_blob.size + image.size
    return BuiltImage(contents.box.name, layout.folder, reference, image.digest, added, len(layers) + 1)


def _oci_layer(layer: Descriptor) -> Descriptor:
    """Return a base's layer under the name that this format has for it."""
    names = {
        "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER_GZIP_TYPE,
        "application/vnd.docker.image.rootfs.diff.tar": LAYER_TYPE,
    }
    return Descriptor(names.get(layer.media_type, layer.media_type), layer.digest, layer.size, layer.annotations)
