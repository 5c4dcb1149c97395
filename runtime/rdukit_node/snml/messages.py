"""SNML messages from the node daemon's rows: fields by name, component paths and trees, routes between RDUs. Pure.

Rows and messages may each have fields that the other lacks, so that daemon and interface can differ for a while. Every
message is valid for every row: numbers are cut to the field's range, objects become JSON.

Each RDU has numbered links; which one leads to which other RDU is not public. Here RDU ``a`` reaches RDU ``b`` by its
link number ``b mod links``; if that is down, by the next one that is up.

Source: runtime reference 1.1 (paths; some tools leave out ``/NODE``), 1.2 (presence), 7.2 (resources as installed and
as usable; per RDU pair, expected and actual routes); the numbering of links is ours.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rdukit.errors import NotFound
from rdukit.proto import snml_pb2 as pb

M = TypeVar("M", bound=Message)

_MAX: Final = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}
_SIGNED: Final = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})


def as_text(value: object) -> str:
    """Return text for a string field: null is empty, objects become JSON, and lone surrogates are replaced."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text.encode(errors="replace").decode()


def as_count(value: object, bits: int = 64) -> int:
    """Return a whole number from 0 for an unsigned field; any other value is 0."""
    largest: int = 2**bits - 1
    return min(_whole(value, least=0), largest)


def from_row(message: type[M], row: Mapping[str, Any], **renamed: str) -> M:
    """Return a message with the fields of ``row``; ``renamed`` maps message fields to row fields with other names.

    Nested messages are not filled, except that a list of texts goes into a repeated text field.
    """
    built: M = message()
    fill(built, row, **renamed)
    return built


def fill(message: Message, row: Mapping[str, Any], **renamed: str) -> None:
    """Fill an existing message as ``from_row`` does; fields that the row lacks keep their values."""
    for field in message.DESCRIPTOR.fields:
        value = row.get(renamed.get(field.name, field.name))
        if value is None or field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        if field.is_repeated:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                items = value if isinstance(value, list | tuple) else str(value).split()
                getattr(message, field.name)[:] = [as_text(item) for item in items]
            continue
        setattr(message, field.name, _scalar(field, value))


def _scalar(field: FieldDescriptor, value: object) -> str | bool | int | float:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return as_text(value)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return bool(value)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        named = field.enum_type.values_by_name.get(str(value))
        return 0 if named is None else int(named.number)
    if kind in _MAX:
        least = -_MAX[kind] - 1 if kind in _SIGNED else 0
        return min(_whole(value, least), _MAX[kind])
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _whole(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return max(least, int(value))


Row = Mapping[str, Any]

ROOT: Final = "/NODE"
_USABLE: Final = frozenset({"Online", "Degraded"})
_PRESENCE: Final = {
    "absent": pb.PRESENCE_ABSENT,
    "present": pb.PRESENCE_PRESENT,
    "vm_present": pb.PRESENCE_VM_PRESENT,
}


def full_path(comp_name: str) -> str:
    """Return ``comp_name`` with its ``/NODE`` and without a slash at the end; the empty text is the node."""
    path = "/" + comp_name.strip().strip("/")
    if path == "/":
        return ROOT
    return path if path == ROOT or path.startswith(ROOT + "/") else ROOT + path


def is_within(path: str, ancestor: str) -> bool:
    """Return whether ``path`` is ``ancestor`` or below it."""
    return path == ancestor or path.startswith(ancestor + "/")


def rows_within(rows: Iterable[Row], comp_name: str, key: str = "comp_name") -> list[Row]:
    """Return rows of a component and of its parts.

    Raises:
        NotFound: there are no rows of the named component.
    """
    ancestor = full_path(comp_name)
    found = [row for row in rows if is_within(full_path(as_text(row.get(key))), ancestor)]
    if not found and comp_name:
        raise NotFound(f"the node has no component {comp_name[:256]!r}; GetStaticResource lists them")
    return found


def resource_tree(
    inventory: Iterable[Row], op_states: Iterable[Row], comp_name: str, *, only_usable: bool
) -> pb.Component:
    """Return the component ``comp_name`` with all below it, in the inventory's order.

    Components that the listing leaves out, such as the node and its XRDUs, are added with the state that follows from
    their parts. ``only_usable`` leaves out unusable resources.

    Raises:
        NotFound: no such component, or it is not usable.
    """
    ancestor = full_path(comp_name)
    states = {full_path(as_text(row.get("comp_name"))): row for row in op_states}
    found: dict[str, pb.Component] = {}
    roots: list[pb.Component] = []
    for row in rows_within(inventory, comp_name):
        _place(_component(row, states), ancestor, found, roots)
    if only_usable:
        roots = [kept for root in roots if (kept := _usable_part(root)) is not None]
    if not roots:
        raise NotFound(f"{ancestor} is unavailable; GetStaticResource and GetSystemFaults report the reason")
    return roots[0]


def _component(row: Row, states: Mapping[str, Row]) -> pb.Component:
    path = full_path(as_text(row.get("comp_name")))
    component = pb.Component(
        comp_name=path,
        kind=as_text(row.get("kind")) or _kind_of(path),
        serial_number=as_text(row.get("serial")),
        part_number=as_text(row.get("part")),
        presence=_PRESENCE.get(as_text(row.get("presence")).lower(), pb.PRESENCE_UNKNOWN),
        health=as_text(row.get("health")),
        size_bytes=as_count(row.get("size_bytes")),
    )
    state = states.get(path)
    if state is not None:
        component.rdu = as_count(state.get("rdu"), 32)
        component.available_tiles = as_count(state.get("available_tiles"), 32)
        component.is_perfect = bool(state.get("perfect"))
    elif component.kind == "TILE":
        parent = states.get(path.rpartition("/")[0])
        if parent is not None:
            component.rdu = as_count(parent.get("rdu"), 32)
        number = path.rpartition("_")[2]
        if number.isdecimal():
            component.tile = as_count(int(number), 32)
    return component


def _place(component: pb.Component, ancestor: str, found: dict[str, pb.Component], roots: list[pb.Component]) -> None:
    path = component.comp_name
    if path in found:
        return
    if path == ancestor:
        roots.append(component)
        found[path] = component
        return
    parent_path = path.rpartition("/")[0]
    if parent_path not in found:
        parent = pb.Component(
            comp_name=parent_path, kind=_kind_of(parent_path), presence=pb.PRESENCE_PRESENT, health="Online",
            serial_number="N/A", part_number="N/A",
        )  # fmt: skip
        _place(parent, ancestor, found, roots)
    found[path] = found[parent_path].children.add()
    found[path].CopyFrom(component)


def _usable_part(component: pb.Component) -> pb.Component | None:
    if component.presence != pb.PRESENCE_PRESENT or component.health not in _USABLE:
        return None
    kept = pb.Component()
    kept.CopyFrom(component)
    del kept.children[:]
    is_slot = component.kind == "DIMM" and component.size_bytes == 0
    parts = [part for child in component.children if (part := _usable_part(child)) is not None]
    if is_slot or (component.children and not parts):
        return None
    kept.children.extend(parts)
    return kept


def _kind_of(path: str) -> str:
    return path.rpartition("/")[2].partition("_")[0]


def routes(inventory: Iterable[Row], comp_name: str = "", *, only_local: bool) -> list[pb.Route]:
    """Return routes between each ordered pair of different RDUs; ``only_local``: of the same XRDU.

    ``comp_name`` keeps routes that begin at this component or below it.
    """
    rows = list(inventory)
    rdus = [full_path(as_text(row.get("comp_name"))) for row in rows if row.get("kind") == "RDU"]
    links: dict[str, list[tuple[str, bool]]] = {rdu: [] for rdu in rdus}
    for row in rows:
        path = full_path(as_text(row.get("comp_name")))
        rdu = path.rpartition("/")[0]
        if row.get("kind") == "PCIE" and rdu in links:
            links[rdu].append((path, _is_up(row)))
    alive = {full_path(as_text(row.get("comp_name"))) for row in rows if row.get("kind") == "RDU" and _is_up(row)}
    found = []
    for a, source in enumerate(rdus):
        if comp_name and not is_within(source, full_path(comp_name)):
            continue
        for b, destination in enumerate(rdus):
            if a == b or (only_local and source.rpartition("/")[0] != destination.rpartition("/")[0]):
                continue
            are_alive = source in alive and destination in alive
            found.append(_route(source, destination, links[source], links[destination], (b, a), are_alive))
    return found


def _route(
    source: str,
    destination: str,
    outgoing: Sequence[tuple[str, bool]],
    incoming: Sequence[tuple[str, bool]],
    numbers: tuple[int, int],
    are_alive: bool,
) -> pb.Route:
    out_expected, out_actual = _link(outgoing, numbers[0])
    in_expected, in_actual = _link(incoming, numbers[1])
    is_up = are_alive and out_actual is not None and in_actual is not None
    return pb.Route(
        source=source,
        destination=destination,
        expected=[source, *_known(out_expected, in_expected), destination],
        actual=[source, *_known(out_actual, in_actual), destination] if is_up else [],
        is_up=is_up,
    )


def _link(links: Sequence[tuple[str, bool]], number: int) -> tuple[str | None, str | None]:
    """Return the link with that number, and the first working one from it on."""
    if not links:
        return None, None
    start = number % len(links)
    order = [*links[start:], *links[:start]]
    return order[0][0], next((path for path, is_up in order if is_up), None)


def _known(*paths: str | None) -> list[str]:
    return [path for path in paths if path is not None]


def _is_up(row: Row) -> bool:
    return row.get("presence") == "Present" and row.get("health") in {"Online", "Degraded"}
