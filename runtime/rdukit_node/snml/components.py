"""Component paths in requests, and the tree of components in answers. Pure.

Source: runtime reference 1.1 (paths; some tools leave out ``/NODE``), 1.2 (presence), 7.2 (resources as installed and
as usable).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rdukit.errors import NotFound
from rdukit.proto import snml_pb2 as pb
from rdukit_node.snml.messages import as_count, as_text

Row = Mapping[str, Any]

ROOT: Final = "/NODE"
_USABLE: Final = frozenset({"Online", "Degraded"})
_PRESENCE: Final = {
    "absent": pb.PRESENCE_ABSENT,
    "present": pb.PRESENCE_PRESENT,
    "vm_present": pb.PRESENCE_VM_PRESENT,
}


def full_path(comp_name: str) -> str:
    """``comp_name`` with its ``/NODE`` and without a slash at the end; the empty text is the node."""
    path = "/" + comp_name.strip().strip("/")
    if path == "/":
        return ROOT
    return path if path == ROOT or path.startswith(ROOT + "/") else ROOT + path


def is_within(path: str, ancestor: str) -> bool:
    """Whether ``path`` is ``ancestor`` or below it."""
    return path == ancestor or path.startswith(ancestor + "/")


def rows_within(rows: Iterable[Row], comp_name: str, key: str = "comp_name") -> list[Row]:
    """Rows of a component and of what is below it.

    Raises:
        NotFound: there are none, though a component was named.
    """
    ancestor = full_path(comp_name)
    found = [row for row in rows if is_within(full_path(as_text(row.get(key))), ancestor)]
    if not found and comp_name:
        raise NotFound(f"the node has no component {comp_name[:256]!r}; GetStaticResource lists them")
    return found


def resource_tree(
    inventory: Iterable[Row], op_states: Iterable[Row], comp_name: str, *, only_usable: bool
) -> pb.Component:
    """The component ``comp_name`` with all below it, in the inventory's order.

    Components that the listing leaves out, such as the node and its XRDUs, are put in with the state that follows from
    what is below them. ``only_usable`` leaves out what no application can use now.

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
        raise NotFound(f"{ancestor} cannot be used at present; GetStaticResource and GetSystemFaults say why")
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
