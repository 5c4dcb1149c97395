"""Boxes as the command line shows them: running at an address, a folder with a YAML, or an image in an OCI layout."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from rdukit.box.image import BOX_FOLDER, LABEL_PREFIX
from rdukit.cli.tables import print_table
from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit.units import format_bytes, plain
from rdukit_modelbox.cli.call import connect
from rdukit_modelbox.contract.box import FILE_NAME, find_box_file, load_box
from rdukit_modelbox.contract.describe import describe


def print_description(description: Mapping[str, Any]) -> None:
    """Print a box's ``Description``, from a YAML or a running box."""
    click.echo(f"{description['name']}: {description['title']}\n{description['description']}")
    origin = f"module {description['module']}" if description.get("module") else f"model {description['model']}"
    mode, target = description["mode"], description["target"]
    click.echo(f"{origin}, compiler {description['compiler_version']}, mode {mode}, target {target}")
    resources = dict(description.get("resources") or {})
    if "memory" in resources:
        resources["memory"] = format_bytes(int(resources["memory"]))
    for title, values in (
        ("resources", resources),
        ("labels", description.get("labels")),
        ("serving", description.get("serving")),
    ):
        if values:
            click.echo(f"{title}: " + ", ".join(f"{key} {plain(value)}" for key, value in values.items()))
    for title in ("licence", "model_card"):
        if description.get(title):
            click.echo(f"{title.replace('_', ' ')}: {description[title]}")
    if description.get("card"):
        _print_card(description["card"])
    for verb in description["verbs"]:
        inputs = [_slot(slot) for slot in verb["inputs"]]
        outputs = [_slot(slot) for slot in verb["outputs"]]
        click.echo(f"\n{verb['name']}: {', '.join(inputs) or 'nothing'} -> {', '.join(outputs) or 'nothing'}")
        if verb["parameters"]:
            rows = [(p["name"], p["type"], _value(p), p["legal"], p["help"]) for p in verb["parameters"]]
            print_table(("PARAMETER", "TYPE", "DEFAULT", "LEGAL", "HELP"), rows)
        if verb.get("metrics"):
            click.echo()
            metrics = [
                (m["name"], m.get("unit", ""), m.get("better", "-"), m["reported"], m["help"]) for m in verb["metrics"]
            ]
            print_table(("METRIC", "UNIT", "BETTER", "REPORTED", "HELP"), metrics)
        if verb.get("uncached"):
            click.echo("pipelines always run it, even if an earlier job made the same outputs")


def _print_card(card: Mapping[str, Any]) -> None:
    click.echo(f"{card['architecture']}\nsource: {card['source']}; licence {card['licence']}")
    click.echo("parameters: " + ", ".join(f"{name} {count:,}" for name, count in card["parameters"].items()))
    for chip, figures in card["projected"].items():
        doing = "a training step" if figures["purpose"] == "train" else "a run"
        click.echo(
            f"{chip}, emulated (projected): {doing} of {figures['batch_size']} in {figures['precision']} takes "
            f"{figures['step_seconds']:.3g} s"
        )
    if card.get("measured"):
        unit = f"; unit {card['unit']}" if card.get("unit") else ""
        words = ", ".join(f"{name} {value}" for name, value in card["measured"].items())
        click.echo(f"measured on held-out data: {words}{unit}")
    if card.get("picture"):
        click.echo(f"picture: {card['picture']['file']}\n{card['picture']['caption']}")


def _slot(slot: Mapping[str, Any]) -> str:
    words = str(slot["name"]) + ("" if slot["required"] else "?")
    more = [f"at {slot['mount']}"] if slot.get("mount") else []
    more += [f"from {' '.join(slot['schemes'])}"] if slot.get("schemes") else []
    return f"{words} ({', '.join(more)})" if more else words


def _value(parameter: Mapping[str, Any]) -> str:
    return plain(parameter["default"]) + (f" {parameter['unit']}" if parameter.get("unit") else "")


#: Largest YAML in bytes that is read from an image.
MAX_YAML_BYTES: Final = 1 << 20


def inspect_running(url: str, token: str | None = None) -> dict[str, Any]:
    """Return description, readiness and operations of the box at ``url``.

    Raises:
        Unavailable: nothing answers there, or it is not a box.
    """
    with connect(url, token) as client:
        description = client.describe()
        try:
            health = client.health()
        except Unavailable as error:
            health = {"status": "not ready", "reason": error.message}
        operations = list(client.operations())
    states: dict[str, int] = {}
    for operation in operations:
        states[operation["state"]] = states.get(operation["state"], 0) + 1
    return {"kind": "running", "url": url, "health": health, "operations": states, "description": description}


def inspect_file(box: str) -> dict[str, Any]:
    """Return the description of an installed box, or of the one in a folder or file.

    Raises:
        NotFound: the file does not exist.
        InvalidArgument: its YAML is wrong.
    """
    file = find_box_file(box)
    return {"kind": "file", "file": str(file), "description": describe(load_box(file))}


def inspect_image(folder: Path, reference: str | None) -> dict[str, Any]:
    """Return the labels of an image in an OCI layout, and the description from its YAML.

    Raises:
        NotFound: no layout, or no such image.
        InvalidArgument: the layout is damaged, or the image is not a box.
    """
    from rdukit_modelbox.image.layout import ImageLayout

    layout = ImageLayout.open(folder)
    descriptor = layout.find(reference)
    manifest, config = layout.read_image(descriptor)
    labels = {**(config.get("config", {}).get("Labels") or {}), **(manifest.get("annotations") or {})}
    name = next((name for name, known in layout.references().items() if known == descriptor), reference)
    description: dict[str, Any] = {
        "kind": "image", "layout": str(folder), "reference": name, "digest": descriptor.digest,
        "bytes": sum(int(layer["size"]) for layer in manifest["layers"]), "layers": len(manifest["layers"]),
        "labels": dict(sorted(labels.items())),
    }  # fmt: skip
    if not any(key.startswith(LABEL_PREFIX) for key in labels):
        raise InvalidArgument(f"{folder}: image {name} is not a ModelBox, because it has no labels {LABEL_PREFIX}*")
    text = _find_yaml(folder, manifest)
    return description if text is None else {**description, "yaml": yaml.safe_load(text)}


def _find_yaml(folder: Path, manifest: dict[str, Any]) -> str | None:
    """Return the box's YAML from the topmost layer that has one."""
    import gzip

    from rdukit_modelbox.image.layer import unpack_file
    from rdukit_modelbox.image.layout import ImageLayout
    from rdukit_modelbox.image.media import Descriptor

    layout = ImageLayout(folder)
    for layer in reversed(manifest["layers"]):
        if int(layer["size"]) > 64 * MAX_YAML_BYTES:
            # A box's own layer is small; large layers belong to its base.
            continue
        path = layout.blob_file(Descriptor.from_json(layer).digest)
        is_packed = str(layer.get("mediaType", "")).endswith("gzip")
        try:
            with gzip.open(path) if is_packed else path.open("rb") as stream:
                data = unpack_file(stream, f"{BOX_FOLDER}/{FILE_NAME}")  # type: ignore[arg-type]
        except FileNotFoundError as cause:
            raise NotFound(f"{folder} lacks blob {layer['digest']}") from cause
        if data is not None:
            return data[:MAX_YAML_BYTES].decode(errors="replace")
    return None


def as_json(description: dict[str, Any]) -> str:
    """Return ``description`` as JSON, for machines."""
    return json.dumps(description, indent=2)
