"""Reference of Python names for the site: the SDK by ``docs/surface.yaml``, and the client. Sphinx reads docstrings.

The same names are written as plain text for machines, with their signatures and docstrings.
"""

import argparse
import importlib
import inspect
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import yaml

from manual.contents import TREE
from sambaflow.samba.utils.argparser import COMMANDS, add_built_in_options
from surface import instances

#: Priorities of names that have an entry; rarer ones are in docs/surface.md.
PRIORITIES: Final = ("P0", "P1", "P2")
CLIENT: Final = "rdukit_platform.client"


@dataclass(frozen=True, slots=True)
class PublicName:
    """Name that programs import, and its object."""

    name: str
    value: Any

    @property
    def is_foreign(self) -> bool:
        """Return whether torch defines it."""
        return str(getattr(self.value, "__module__", "")).startswith("torch.")

    @property
    def directive(self) -> str:
        """Sphinx's directive for this kind of object; empty: a value that is described in a line."""
        if self.is_foreign:
            return ""
        if inspect.isclass(self.value):
            return "autoclass"
        return "automodule" if isinstance(self.value, ModuleType) else "autofunction" if callable(self.value) else ""


def sdk_names() -> dict[str, tuple[list[PublicName], list[str]]]:
    """Return by section of the surface its names that resolve, and its members of instances, such as ``@tensor.grad``.

    Names of the priorities ``PRIORITIES`` only.
    """
    listed = yaml.safe_load((TREE / "docs/surface.yaml").read_text())["sections"]
    found: dict[str, tuple[list[PublicName], list[str]]] = {}
    for section, by_priority in listed.items():
        names = [name for each in PRIORITIES for name in by_priority.get(each, "").split()]
        known = [each for name in names if not name.startswith("@") and (each := find_name(name)) is not None]
        found[section] = known, [name for name in names if name.startswith("@")]
    return found


def find_name(name: str) -> PublicName | None:
    """Return what a dotted name stands for; ``None``: this package does not have it."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return None
            value = getattr(value, part)
        return PublicName(name, value)
    return None


def sdk_pages() -> dict[str, str]:
    """Return reStructuredText by place: ``sdk``, and ``sdk/SECTION`` for each section of the surface."""
    introduction = (
        "Names that programs import from ``sambaflow``, with signatures and docstrings. :doc:`surface` lists every "
        "name of the vendor's interface, also the rare ones, and what is partial."
    )
    pages: dict[str, str] = {}
    seen: set[int] = set()
    roots = instances()
    for section, (names, members) in sdk_names().items():
        blocks = [_title(section)]
        for each in names:
            blocks.append(_entry(each, is_again=id(each.value) in seen))
            seen.add(id(each.value))
        blocks += _members(members, roots, seen)
        if any(name.startswith("@args.") for name in members):
            blocks += [_options(command) for command in COMMANDS]
        if len(blocks) > 1:
            pages[f"sdk/{_slug(section)}"] = "\n\n".join(blocks) + "\n"
    places = "\n".join(f"   {place}" for place in pages)
    pages["sdk"] = "\n\n".join([_title("SDK: sambaflow"), introduction, f".. toctree::\n   :maxdepth: 1\n\n{places}\n"])
    return pages


def client_page() -> str:
    """Return reStructuredText of the client's public names."""
    module = importlib.import_module(CLIENT)
    names = [PublicName(f"{CLIENT}.{name}", getattr(module, name)) for name in module.__all__]
    introduction = (
        "``from rdukit_platform.client import Platform``. :doc:`python-client` shows how it is used. Asynchronous "
        "classes have the same methods, to be awaited."
    )
    return "\n\n".join([_title("Python client"), introduction, *(_entry(each) for each in names)]) + "\n"


def python_text() -> str:
    """Return the SDK's and the client's names as plain text: signatures and docstrings."""
    module = importlib.import_module(CLIENT)
    client = [PublicName(f"{CLIENT}.{name}", getattr(module, name)) for name in module.__all__]
    sdk = [each for names, _ in sdk_names().values() for each in names]
    seen: set[int] = set()
    lines = ["# Python names"]
    for each in (*sdk, *client):
        if id(each.value) not in seen and each.directive:
            lines.append(f"## {each.name}{_signature(each.value)}\n\n{inspect.getdoc(each.value) or ''}")
        seen.add(id(each.value))
    return "\n\n".join(lines) + "\n"


def _signature(value: Any) -> str:
    try:
        return "" if isinstance(value, ModuleType) else str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""


def _entry(each: PublicName, *, is_again: bool = False) -> str:
    """Return the entry of one name; one object that has several names is described at the first."""
    if each.is_foreign:
        return f"``{each.name}``\n   torch's own {each.value.__name__}."
    if not each.directive:
        return f"``{each.name}``\n   A value of type ``{type(each.value).__name__}``."
    options = ["   :no-index:"] if is_again else []
    if each.directive == "autoclass":
        options.append("   :members:")
    if each.directive == "automodule":
        doc = (inspect.getdoc(each.value) or "").partition("\n\n")[0]
        return f"``{each.name}`` (module)\n   {' '.join(doc.split())}"
    return "\n".join([f".. {each.directive}:: {each.name}", *options])


def _members(names: list[str], roots: Mapping[str, Any], seen: Container[int]) -> Iterator[str]:
    """Yield entries of members of instances: those that this package defines, then the others in one line.

    Args:
        seen: ids of classes that are described with their members already.
    """
    others: dict[str, list[str]] = {}
    for name in names:
        instance, _, member = name.partition(".")
        kind = type(roots[instance])
        if not kind.__module__.startswith("sambaflow") or member not in vars(kind):
            others.setdefault(instance[1:], []).append(f"``{member}``")
            continue
        directive = "autoattribute" if isinstance(vars(kind)[member], property) else "automethod"
        again = "\n   :no-index:" if id(kind) in seen else ""
        yield f".. {directive}:: {kind.__module__}.{kind.__qualname__}.{member}{again}"
    for instance, members in others.items():
        if instance != "args":
            yield f"Further members of a {instance}, as torch has them or plain values: {', '.join(members)}."


def _options(command: str) -> str:
    """Return the table of a program's built-in options for one of its commands."""
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    add_built_in_options(parser, command)
    rows = [
        f"   * - ``{', '.join(each.option_strings)}``\n     - {_default(each.default)}\n     - {_literal(each.help)}"
        for each in parser._actions
        if each.help != argparse.SUPPRESS
    ]
    head = ".. list-table::\n   :header-rows: 1\n\n   * - option\n     - default\n     - what"
    return "\n".join([f"Options of ``{command}``\n{'-' * (len(command) + 15)}\n", head, *rows])


def _default(value: object) -> str:
    return "–" if value in (None, "") else f"``{value}``"


def _literal(text: str | None) -> str:
    """Return a help text as reStructuredText that shows it."""
    return re.sub(r"([*`|_\\])", r"\\\1", " ".join((text or "").split())) or "–"


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
