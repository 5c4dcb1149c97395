"""A box's description for callers: the same words on both wires."""

from rdukit_modelbox.box import ArtifactSlot, Box, Verb
from rdukit_modelbox.contract.parameter import BoxParameter


def describe(box: Box) -> dict[str, object]:
    """The ``Description`` of ``docs/design/wire.md`` as JSON-able values; what the box does not say is left out."""
    told: dict[str, object] = {
        "name": box.name,
        "title": box.title,
        "description": box.description,
        "model": box.model,
        "compiler_version": box.compiler_version,
        "mode": box.mode,
        "target": box.target,
        "verbs": [describe_verb(box, verb) for verb in box.verbs],
    }
    more: dict[str, object] = {
        "module": box.module,
        "resources": box.resources.model_dump(exclude_none=True),
        "serving": box.serving.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
        "labels": dict(box.labels),
        "licence": box.licence,
        "model_card": box.model_card,
    }
    return {**told, **{key: value for key, value in more.items() if value}}


def describe_verb(box: Box, verb: Verb) -> dict[str, object]:
    """One verb: parameters with default and legal values, in words and as JSON schema, and artifacts."""
    slots = box.slots_of(verb)
    return {
        "name": str(verb),
        "parameters": [_describe_parameter(parameter) for parameter in box.parameters_of(verb)],
        "inputs": [_describe_slot(slot) for slot in slots.inputs],
        "outputs": [_describe_slot(slot) for slot in slots.outputs],
    }


def _describe_parameter(parameter: BoxParameter) -> dict[str, object]:
    told: dict[str, object] = {
        "name": parameter.name,
        "type": str(parameter.type),
        "default": parameter.default,
        "legal": parameter.legal_words(),
        "help": parameter.help,
        "schema": parameter.schema_fragment(),
    }
    return told if parameter.unit is None else {**told, "unit": parameter.unit}


def _describe_slot(slot: ArtifactSlot) -> dict[str, object]:
    told: dict[str, object] = {"name": slot.name, "kind": slot.kind, "required": slot.required, "help": slot.help}
    if slot.mount is not None:
        told["mount"] = slot.mount
    if slot.schemes is not None:
        told["schemes"] = list(slot.schemes)
    return told
