"""Packages with a lazy face: each name is imported with its module when it is first used."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import rdukit_compiler
import rdukit_platform.client
from support import shows

pytestmark = [
    shows("project"),
    pytest.mark.parametrize("package", [rdukit_compiler, rdukit_platform.client], ids=lambda each: each.__name__),
]


def test_the_face_has_the_names_that_type_checkers_see(package: ModuleType) -> None:
    source = Path(str(package.__file__)).read_text()
    declared = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package.__name__}.")
        for alias in node.names
    }
    face = vars(package)["FACE"]
    assert {(module, name) for module, names in face.items() for name in names.split()} == declared


def test_every_name_of_the_face_is_its_modules_and_is_listed(package: ModuleType) -> None:
    for module, names in vars(package)["FACE"].items():
        for name in names.split():
            assert getattr(package, name) is getattr(importlib.import_module(module), name)
            assert name in dir(package)


def test_a_name_that_the_face_lacks_is_refused(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
