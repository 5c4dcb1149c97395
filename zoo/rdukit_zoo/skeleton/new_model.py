"""A new model of the zoo: its module, its box and the lines that name it, in a checkout. Pure but for one call.

The new model is a small regression that draws its own data, so all of its files work before the first change.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit_zoo.registry import MODULES

#: Folders of the zoo's models.
FAMILIES: Final = ("language", "science", "vision")
NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,40}")
#: File → the line of the dictionary that gets a line for each model, and that line.
LINES: Final[Mapping[str, tuple[str, str]]] = {
    "zoo/rdukit_zoo/registry.py": ("MODULES: Final = {", '    "$name": "$family.$name",\n'),
    "tests/support/zoo_parity.py": (
        "SMALL_SIZES: Final[",
        '    "$name": ({}, {"num_features": 9, "hidden_size": 24}),\n',
    ),
}

_MODULE: Final = Template('''\
"""$title: rows of numbers in, one number out. Two linear layers with a GELU between.

Axes: N samples, B batch, F features.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import SizeValue, model


def make_inputs(batch_size: int, num_features: int = 16, hidden_size: int = 32) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``rows`` [batch, features] and ``target`` [batch, 1]."""
    rows = samba.randn(batch_size, num_features, name="rows", batch_dim=0)
    return rows, samba.randn(batch_size, 1, name="target", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw rows and the sine of a fixed projection of them, with a little noise.

    Returns:
        ``rows`` [N, F] and ``target`` [N, 1], both float32.
    """
    draw, world = np.random.default_rng([seed, 1]), np.random.default_rng(1)
    features = int(sizes["num_features"])
    rows = draw.normal(size=(count, features)).astype(np.float32)
    projection = world.normal(size=(features, 1)) / features**0.5
    target = np.sin(rows @ projection) + 0.01 * draw.normal(size=(count, 1))
    return {"rows": rows, "target": target.astype(np.float32)}


@model(
    name="$name",
    title="$title",
    task="regression",
    licence="Apache-2.0",
    source="ours: name the paper or the program that describes the model",
    sizes={"num_features": 16, "hidden_size": 32},
    make_inputs=make_inputs,
    generate=generate,
)
class $kind(nn.Module):
    """(rows [B, F], target [B, 1]) → (loss [], values [B, 1]); the rows alone → the values."""

    def __init__(self, num_features: int = 16, hidden_size: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden_size)
        self.answer = nn.Linear(hidden_size, 1)

    def forward(
        self, rows: torch.Tensor, target: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        values: torch.Tensor = self.answer(F.gelu(self.hidden(rows)))
        return values if target is None else (F.mse_loss(values, target), values)
''')
_BOX: Final = Template("""\
apiVersion: rdukit.dev/v1
kind: ModelBox
extends: regression
name: $box
title: "$title"
description: >-
  Two linear layers find one number from a row of numbers. Without data, rows are drawn.
model: $name
compilerVersion: "0.1"

parameters:
  - {name: num_features, type: int, default: 16, legal: {minimum: 1, maximum: 65536}, verbs: [preprocess, compile],
     size: true, help: Values in a row.}
  - {name: hidden_size, type: int, default: 32, legal: {minimum: 1, maximum: 65536}, verbs: [compile], size: true,
     help: Width of the hidden layer.}
""")
_NO_LORA: Final = (
    "This box has no lora_rank: adapters lie beside the dense layers of transformers, and this model is none."
)
_RECIPES: Final = Template(f"""\
train:
  preprocess: {{samples: 4000}}
  compile: {{batch_size: 64}}
  train: {{epochs: 8, lr: 0.003, schedule: cosine}}
fine-tune:
  checkpoint: train
  preprocess: {{samples: 4000, seed: 1}}
  train: {{epochs: 2, lr: 0.001, schedule: cosine}}
lora:
  unavailable: '{_NO_LORA}'
evaluate:
  checkpoint: train
  evaluate: {{}}
infer:
  checkpoint: train
  compile: {{purpose: serve, batch_size: 16}}
""")


def new_model_files(name: str, title: str, family: str) -> dict[str, str]:
    """Return the files of a new model, path below the checkout → text: its module, its box, the box's recipes.

    Raises:
        InvalidArgument: no model can be called so, or one already is; or the title has a quote or a line end.
    """
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not valid as a model name; expected a lower-case letter, then lower-case letters, digits "
            "and _",
            field="name",
        )
    if not title.isprintable() or set(title) & set('"\\'):
        raise InvalidArgument(
            f"title {title!r} has a quote, a backslash or a line end; write it without them", field="title"
        )
    if name in MODULES:
        raise InvalidArgument(f"the zoo already has a model {name!r}; choose another name", field="name")
    box = name.replace("_", "-")
    words = {
        "name": name,
        "box": box,
        "title": title,
        "kind": "".join(part.capitalize() for part in name.split("_")),
    }
    boxes = f"modelboxes/rdukit_modelbox/boxes/{box}"
    return {
        f"zoo/rdukit_zoo/{family}/{name}.py": _MODULE.substitute(words),
        f"{boxes}/modelbox.yaml": _BOX.substitute(words),
        f"{boxes}/recipes.yaml": _RECIPES.substitute(words),
    }


def with_line(text: str, opening: str, line: str) -> str:
    """Return a module's text with one line more in the dictionary that begins with ``opening``, by its name's place."""
    lines = text.splitlines(keepends=True)
    first = next(number for number, each in enumerate(lines) if each.startswith(opening)) + 1
    entry = re.compile(r'    "(\w+)": ')
    place = first
    for number in range(first, len(lines)):
        if lines[number].startswith("}"):
            break
        found, new = entry.match(lines[number]), entry.match(line)
        place = number + 1
        if found and new and found[1] > new[1]:
            place = number
            break
    return "".join([*lines[:place], line, *lines[place:]])


def write_new_model(tree: Path, name: str, title: str, family: str) -> list[str]:
    """Write a new model's files, and its lines into those that name all models; return their paths below ``tree``.

    Raises:
        InvalidArgument: a name that is illegal or taken, by a file too; nothing is written.
    """
    files = new_model_files(name, title, family)
    if there := [path for path in files if (tree / path).exists()]:
        raise InvalidArgument(f"{there[0]} already exists; choose another name", field="name")
    for path, (opening, line) in LINES.items():
        words = Template(line).substitute(name=name, family=family)
        files[path] = with_line((tree / path).read_text(), opening, words)
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(tree / path, text.encode())
    return list(files)
