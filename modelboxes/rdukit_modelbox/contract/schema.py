"""The JSON schema of ``modelbox.yaml``: for editors, and for tools that read boxes. Made from the values' classes.

``python -m rdukit_modelbox.contract.schema`` writes it anew.
"""

import json
from pathlib import Path
from typing import Any, Final

from rdukit_modelbox.box import Box

SCHEMA_FILE: Final = Path(__file__).with_name("modelbox.schema.json")


def box_schema() -> dict[str, Any]:
    """Draft 2020-12. Editors check with it; dependences between parts need ``rdukit box validate``."""
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
        "description": "A ModelBox of rdukit: one model and one compiler version behind four verbs.",
    }


def schema_text() -> str:
    """As the shipped file has it."""
    return json.dumps(box_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
