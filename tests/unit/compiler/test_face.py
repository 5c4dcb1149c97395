"""The compiler's face: what the SDK takes from the compiler, imported when it is used."""

import ast
import importlib
from pathlib import Path

import rdukit_compiler
from support import shows

pytestmark = shows("project")


def test_the_face_has_the_names_that_type_checkers_see() -> None:
    source = Path(str(rdukit_compiler.__file__)).read_text()
    declared = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rdukit_compiler.")
        for alias in node.names
    }
    face = vars(rdukit_compiler)["FACE"]
    assert {(module, name) for module, names in face.items() for name in names.split()} == declared


def test_every_name_of_the_face_is_its_modules() -> None:
    for module, names in vars(rdukit_compiler)["FACE"].items():
        for name in names.split():
            assert getattr(rdukit_compiler, name) is getattr(importlib.import_module(module), name)
