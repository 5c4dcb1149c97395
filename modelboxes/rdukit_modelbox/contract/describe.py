"""A box's description for callers, the same on both transports, and the JSON schema of ``modelbox.yaml``.

``python -m rdukit_modelbox.contract.describe`` rewrites the schema's file.
"""

import json
from pathlib import Path
from typing import Any, Final

from rdukit_modelbox.contract.box import ArtifactSlot, Box, Verb
from rdukit_modelbox.contract.metrics import metrics_of
from rdukit_modelbox.contract.parameter import BoxParameter


def describe(box: Box) -> dict[str, object]:
    """Return the ``Description`` of ``docs/design/wire.md`` as JSON values; missing keys of the box are left out."""
    fields: dict[str, object] = {
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
    return {**fields, **{key: value for key, value in more.items() if value}}


def describe_verb(box: Box, verb: Verb) -> dict[str, object]:
    """Describe one verb: parameters with default and legal values, in words and as JSON schema, artifacts, metrics."""
    slots = box.slots_of(verb)
    metrics = [metric.model_dump(mode="json", exclude={"verbs"}, exclude_none=True) for metric in metrics_of(box, verb)]
    more: dict[str, object] = {"metrics": metrics, "uncached": verb in box.uncached}
    return {
        "name": str(verb),
        "parameters": [_describe_parameter(parameter) for parameter in box.parameters_of(verb)],
        "inputs": [_describe_slot(slot) for slot in slots.inputs],
        "outputs": [_describe_slot(slot) for slot in slots.outputs],
        **{key: value for key, value in more.items() if value},
    }


def _describe_parameter(parameter: BoxParameter) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": parameter.name,
        "type": str(parameter.type),
        "default": parameter.default,
        "legal": parameter.legal_words(),
        "help": parameter.help,
        "schema": parameter.schema_fragment(),
    }
    return fields if parameter.unit is None else {**fields, "unit": parameter.unit}


def _describe_slot(slot: ArtifactSlot) -> dict[str, object]:
    fields: dict[str, object] = {"name": slot.name, "kind": slot.kind, "required": slot.required, "help": slot.help}
    if slot.mount is not None:
        fields["mount"] = slot.mount
    if slot.schemes is not None:
        fields["schemes"] = list(slot.schemes)
    return fields


SCHEMA_FILE: Final = Path(__file__).with_name("modelbox.schema.json")


def box_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) for editors; dependences between parts need ``rdukit box validate``."""
    schema = Box.model_json_schema(by_alias=True)
    schema["required"] = [key for key in schema["required"] if key != "model"]
    inherited = ["mode", "target", "verbs"]
    schema["required"] = [key for key in schema["required"] if key not in inherited]
    schema["allOf"] = [
        {"anyOf": [{"required": ["model"]}, {"required": ["module"]}]},
        {"anyOf": [{"required": ["extends"]}, {"required": inherited}]},
    ]
    # A plain value is short for a mapping with a default.
    mapping = schema["$defs"]["ParameterChange"]
    plain = [{"type": kind} for kind in ("boolean", "number", "string")]
    schema["$defs"]["ParameterChange"] = {"anyOf": [*plain, {**mapping, "minProperties": 1}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:rdukit:modelbox:v1",
        **schema,
        "title": "ModelBox",
        "description": "A ModelBox of rdukit: one model and one compiler version behind a few verbs.",
    }


def schema_text() -> str:
    """Return the schema's text, equal to the shipped file."""
    return json.dumps(box_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
