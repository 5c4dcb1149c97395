"""State outside of a model's modules that their code can reach: globals, attributes of classes and functions, closures.

Only the program's own code is followed, not torch's, the SDK's or the standard library's. Source: ours.
"""

import dis
import functools
import sys
from collections.abc import Collection
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Protocol

from torch import nn

#: Packages whose functions keep no state of a program's.
_LIBRARIES: Final = frozenset({"torch", "sambaflow", "numpy", "torchvision"}) | sys.stdlib_module_names
_OURS: Final = "rdukit"
#: Bytecode instructions that read or write a global.
_OF_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


class Place(Protocol):
    """Named values outside of a model's instances, which code reads and writes."""

    def read(self) -> dict[str, Any]:
        """Return name → value for the existing names."""

    def write(self, values: dict[str, Any]) -> None:
        """Set each name to its value; delete names without a value."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names in a Python module, a class or a function: those that code looks up, or all except Python's own."""

    owner: ModuleType | type | FunctionType
    names: set[str] | None = None

    def read(self) -> dict[str, Any]:
        found = vars(self.owner)
        if self.names is not None:
            return {name: found[name] for name in self.names if name in found}
        return {name: value for name, value in found.items() if not name.startswith("__")}

    def write(self, values: dict[str, Any]) -> None:
        now = self.read()
        for name in now.keys() - values.keys():
            delattr(self.owner, name)
        for name, value in values.items():
            if name not in now or now[name] is not value:
                setattr(self.owner, name, value)


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable of an enclosing function."""

    cell: CellType
    name: str

    def read(self) -> dict[str, Any]:
        return {self.name: self.cell.cell_contents} if _is_full(self.cell) else {}

    def write(self, values: dict[str, Any]) -> None:
        if self.name in values:
            self.cell.cell_contents = values[self.name]


def reachable_places(model: nn.Module) -> list[tuple[str, Place]]:
    """Return places outside of ``model`` where the code of its modules may keep state, each with its name."""
    walk = _Walk()
    for module in model.modules():
        walk.follow(type(module))
        for value in list(vars(module).values()):
            walk.follow(value)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in hooks.values():
                walk.follow(hook)
    return walk.places


class _Walk:
    def __init__(self) -> None:
        self.places: list[tuple[str, Place]] = []
        self._seen: set[int] = set()
        #: Python module → its names that code looks up.
        self._globals: dict[str, set[str]] = {}
        self._classes: set[int] = set()
        #: Names that code uses, and members of classes that have not been used so far.
        self._used = {"forward"}
        self._unused: dict[str, list[Any]] = {}
        #: References, so that ids are not reused.
        self._held: list[Any] = []

    def follow(self, value: Any) -> None:
        """Find places that are reachable from ``value``: a class, function or method, or an object of a class."""
        pending = [value]
        while pending:
            current = pending.pop()
            if id(current) in self._seen:
                continue
            self._seen.add(id(current))
            self._held.append(current)
            pending.extend(self._next(current))

    def _next(self, value: Any) -> list[Any]:
        match value:
            case FunctionType():
                return self._of_function(value)
            case MethodType():
                return [value.__func__, value.__self__]
            case property():
                return [value.fget, value.fset]
            case staticmethod() | classmethod():
                return [value.__func__]
            case type():
                return self._of_class(value)
            case None | bool() | int() | float() | str() | bytes() | ModuleType() | nn.Module():
                return []
            case list() | tuple():
                return [item for item in value[:64] if callable(item)]
            case dict():
                return [item for item in list(value.values())[:64] if callable(item)]
            case functools.partial():
                return [value.func, *value.args, *value.keywords.values()]
        return [type(value), getattr(value, "__dict__", {}).get("__wrapped__")]

    def _of_class(self, kind: type) -> list[Any]:
        found: list[Any] = []
        for base in kind.__mro__:
            if base is object or is_library(base.__module__) or id(base) in self._classes:
                continue
            self._classes.add(id(base))
            self.places.append((base.__qualname__, Names(base)))
            for name, value in vars(base).items():
                if not _is_code(value):
                    continue
                if name in self._used or name.startswith("__"):  # methods that Python calls implicitly
                    found.append(value)
                else:
                    self._unused.setdefault(name, []).append(value)
        return found

    def _of_function(self, function: FunctionType) -> list[Any]:
        if is_library(function.__module__ or ""):
            # A decorator of a program's function, such as torch.no_grad().
            return [cell.cell_contents for cell in function.__closure__ or () if _has_function(cell)]
        found: list[Any] = []
        used = _names_in(function.__code__)
        self._used.update(used)
        found.extend(value for name in used for value in self._unused.pop(name, ()))
        if (module := sys.modules.get(function.__globals__.get("__name__", ""))) is not None:
            known = used if "globals" in used else _globals_in(function.__code__)
            found.extend(self._of_module(module, known, used))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen and name != "__class__":
                self._seen.add(id(cell))
                self.places.append((function.__qualname__, Cell(cell, name)))
                found.extend([cell.cell_contents] if _is_full(cell) else [])
        self.places.append((function.__qualname__, Names(function)))
        return found

    def _of_module(self, module: ModuleType, used: Collection[str], attributes: Collection[str]) -> list[Any]:
        """Return the values of the names that code uses in a Python module, and in those that it imports."""
        if module.__name__ not in self._globals:
            names = self._globals[module.__name__] = set()
            self.places.append((module.__name__, Names(module, names)))
        names = self._globals[module.__name__]
        found = []
        for name in used:
            if name in names or name.startswith("__"):
                continue
            value = vars(module).get(name)
            if isinstance(value, ModuleType):
                if not is_library(value.__name__):
                    inner = [n for n in attributes if n != name]
                    found.extend(self._of_module(value, inner, inner))
                continue
            names.add(name)
            found.append(value)
        return found


def is_library(module: str) -> bool:
    """Return whether a Python module of this name belongs to a library, not to the program."""
    package = module.partition(".")[0]
    return package in _LIBRARIES or package.startswith(_OURS)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type | property | staticmethod | classmethod)


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _has_function(cell: CellType) -> bool:
    return _is_full(cell) and isinstance(cell.cell_contents, FunctionType)


@functools.cache
def _globals_in(code: CodeType) -> tuple[str, ...]:
    """Return the globals that the code and nested code read or write, without attributes."""
    found = dict.fromkeys(str(each.argval) for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(dict.fromkeys(_globals_in(constant)))
    return tuple(found)


def _names_in(code: CodeType) -> tuple[str, ...]:
    """Return names that the code and nested code look up: globals and attributes, also by ``getattr``."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(dict.fromkeys(_names_in(constant)))
        elif isinstance(constant, str) and constant.isidentifier():
            found[constant] = None
    return tuple(found)
