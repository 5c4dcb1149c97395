"""Lazy public names of a package: the module of a name is imported when the name is first used."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_face(package: str, face: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package with these names.

    The package lists the same names as imports under ``TYPE_CHECKING``, which type checkers read.

    Args:
        package: the package's ``__name__``.
        face: module → its public names, separated by spaces.
    """
    origins = {name: module for module, names in face.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(origins[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *origins})

    return find, list_names
