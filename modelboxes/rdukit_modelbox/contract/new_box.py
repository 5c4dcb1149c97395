"""Files of a new box: an installed box's YAML with another name and comments (pure)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from rdukit.errors import InvalidArgument
from rdukit.strict_yaml import read_yaml
from rdukit_modelbox.contract.box import FILE_NAME
from rdukit_modelbox.contract.describe import SCHEMA_FILE
from rdukit_modelbox.contract.parts import Name

SKELETON: Final = Path(__file__).parent / "skeleton" / "model.py"

_HEAD: Final = """\
# yaml-language-server: $schema=modelbox.schema.json
#
# A ModelBox: one model and one compiler version behind a few verbs. extends names the task whose parameters it has;
# print all of them: rdukit box describe FOLDER --yaml. Check this file: rdukit box validate modelbox.yaml
# override: {train: {lr: 0.01, epochs: {default: 2, legal: {maximum: 10}}}}     other defaults, narrower legal values
# remove: {train: [patience]}                                                   without these parameters of the task
# parameters: more of them: name, type (int, float, string, bool), default, verbs, help; also legal (enum, minimum,
#   maximum, above, below, multipleOf, pattern), unit, when, cases; size: true passes one to the model's builder
"""
_TAIL: Final = """
# Optional: what one replica needs, what is served over the Open Inference Protocol, mount points, words to find it by.
# resources: {tiles: 4, memory: 2GiB, cpus: 2, replicas: 1}
# serving: {name: NAME, max_batch_size: 32, max_queue: 256, inputs: [{name: image, symbol: image, datatype: FP32}]}
# artifacts: {infer: {inputs: [{name: pef, kind: file, mount: /models, schemes: [file, s3], help: The model.}]}}
# labels: {team: vision}
# licence: Apache-2.0
# modelCard: README.md
"""


def new_box_files(name: str, template: str, has_module: bool) -> Mapping[str, bytes]:
    """Return the files, by name, of a new box ``name`` after ``template``, an installed box's YAML.

    Raises:
        InvalidArgument: the name is illegal.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as cause:
        legal = "a lower-case letter, then lower-case letters, digits, - and _; at most 63"
        raise InvalidArgument(f"{name!r} is not valid as a box name; expected {legal}", field="name") from cause
    replaced = {
        "name": f"name: {name}\n",
        "title": f"title: {json.dumps(f'The box {name}')}\n",
        # A file of the template that the new box does not have.
        "modelCard": "",
    }
    if has_module:
        replaced["model"] = "module: model.py:make_model\n"
        replaced["description"] = "description: >-\n  Two linear layers: 784 grey values in, 10 classes out.\n"
        replaced["sizes"] = "sizes: {num_features: 784, num_classes: 10}\n"
    body = _with_keys(template, replaced)
    files = {
        FILE_NAME: (_HEAD + body + _TAIL.replace("NAME", name)).encode(),
        SCHEMA_FILE.name: SCHEMA_FILE.read_bytes(),
    }
    return {**files, "model.py": SKELETON.read_bytes()} if has_module else files


def _with_keys(text: str, replaced: Mapping[str, str]) -> str:
    """Return ``text`` with some top-level blocks replaced; everything else, also comments, stays."""
    marks = read_yaml(text).marks
    starts = {mark.line - 1: str(path[0]) for path, mark in marks.items() if len(path) == 1}
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    is_replaced = False
    for number, line in enumerate(lines):
        key = starts.get(number)
        if key is not None:
            is_replaced = key in replaced
            if is_replaced:
                kept.append(replaced[key])
        elif not line.startswith((" ", "-")):
            is_replaced = False
        if not is_replaced:
            kept.append(line)
    return "".join(kept)
