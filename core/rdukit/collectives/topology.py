"""Machines as levels of links: tiles of an RDU, RDUs of an XRDU, XRDUs of a node, nodes of a rack, racks. Pure.

A machine joins ranks level by level. Ranks are numbered innermost first, so neighbours are near each other. Unpublished
figures are assumptions; ``links.yaml`` has the defaults and marks each assumption.

Source: ours; levels from runtime reference 1.1, collectives from distributed reference 1.2.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from math import ceil, isfinite, prod
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, suggest
from rdukit.hardware import NODES, NodeSpec, find_node

#: Levels from the innermost to the outermost, by the units that each joins.
LEVELS: Final = ("tile", "rdu", "xrdu", "node", "rack")
GRAMMAR: Final = (
    "64xSN30-8 (nodes x platform), rack:4x16xSN30-8 (racks x nodes x platform), or a file that ends in .yaml"
)
#: Maximum ranks of a plan.
MAX_RANKS: Final = 16_384
_NAME: Final = re.compile(r"(?:(\d{1,6})x)?([A-Za-z][A-Za-z0-9-]*)")
_RACKS: Final = re.compile(r"rack:(\d{1,6})x(\d{1,6})x([A-Za-z][A-Za-z0-9-]*)")
_LINK_KEYS: Final = frozenset({"wiring", "ports", "latency_us", "gb_s"})
_FILE_KEYS: Final = frozenset({"platform", "nodes", "racks", "links", "add_gb_s"})


class Wiring(StrEnum):
    """Way in which the units of a level are joined."""

    MESH = "mesh"  # each pair has separate links
    SWITCH = "switch"  # each unit has ports to a switch of unlimited bandwidth


@dataclass(frozen=True, slots=True)
class Level:
    """Units joined by one class of link. ``bandwidth``: bytes a second of one link and direction."""

    name: str
    size: int
    wiring: Wiring
    ports: int
    latency_s: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class MachineLink:
    """Link below unit ``parent``: between its children ``a`` and ``b``, or a port of ``a`` (``b`` is -1)."""

    name: str
    level: int
    parent: int
    a: int
    b: int = -1


@dataclass(frozen=True, slots=True)
class Machine:
    """Levels of links, the innermost first. ``add_bandwidth``: bytes that a rank adds a second."""

    name: str
    levels: tuple[Level, ...]
    add_bandwidth: float
    #: Origin of the figures, for people.
    figures: str
    broken: tuple[MachineLink, ...] = ()

    @property
    def ranks(self) -> int:
        """Maximum number of ranks on the machine."""
        return prod(level.size for level in self.levels)

    def require(self, ranks: int) -> None:
        """Check that ``ranks`` ranks fit.

        Raises:
            InvalidArgument: fewer than one, or more than the machine has.
        """
        if not 1 <= ranks <= min(self.ranks, MAX_RANKS):
            raise InvalidArgument(
                f"{ranks} ranks do not fit {self.name}; expected 1 to {min(self.ranks, MAX_RANKS)} "
                "ranks, or a larger --topology"
            )


@dataclass(frozen=True, slots=True)
class Tier:
    """A level as ``ranks`` ranks use it: ``n`` children of ``r`` ranks each under one unit.

    ``order``: order in which a ring visits the children. ``ports``: ports of the unit with the fewest.
    """

    index: int
    level: Level
    n: int
    r: int
    ports: int
    order: tuple[int, ...]
    #: A pair of children without a working link, which rings or other algorithms cannot avoid.
    broken: tuple[MachineLink, ...] = ()
    is_ring_whole: bool = True


def tiers(machine: Machine, ranks: int) -> tuple[Tier, ...]:
    """Return the levels that ``ranks`` ranks use, the innermost first; empty for one rank.

    Raises:
        InvalidArgument: the ranks do not fit, or broken links cut some of them off.
    """
    machine.require(ranks)
    found, r = list[Tier](), 1
    for index, level in enumerate(machine.levels):
        n = min(level.size, ceil(ranks / r))
        if n > 1:
            found.append(_tier(machine, index, n, r, ranks))
        r *= level.size
    if found and found[-1].broken and found[-1].n == 2:
        raise InvalidArgument(
            f"{ranks} ranks cannot avoid {found[-1].broken[0].name}: they have no other link; "
            "expected a link with a detour, or more ranks"
        )
    return tuple(found)


def _tier(machine: Machine, index: int, n: int, r: int, ranks: int) -> Tier:
    level = machine.levels[index]
    units = ceil(ranks / (r * level.size))
    used = [k for k in machine.broken if k.level == index and k.parent < units and max(k.a, k.b) < n]
    if level.wiring is Wiring.SWITCH:
        lost: dict[tuple[int, int], int] = {}
        for link in used:
            lost[link.parent, link.a] = lost.get((link.parent, link.a), 0) + 1
        ports = level.ports - max(lost.values(), default=0)
        if ports < 1:
            raise InvalidArgument(
                f"the ranks cannot avoid {used[0].name}: all {level.ports} ports of that {level.name} are broken; "
                "expected at least one"
            )
        return Tier(index, level, n, r, ports, tuple(range(n)))
    is_top = r * level.size >= ranks
    order = find_ring(n, {(k.a, k.b) for k in used}, closed=is_top)
    return Tier(index, level, n, r, level.ports, order or tuple(range(n)), tuple(used), order is not None)


def find_ring(n: int, broken: set[tuple[int, int]], *, closed: bool) -> tuple[int, ...] | None:
    """Return an order of ``n`` children without a broken link between neighbours; ``None``: there is none.

    ``closed``: also between the last and the first. After 10,000 steps the search returns ``None``.
    """
    if not broken:
        return tuple(range(n))
    apart = broken | {(b, a) for a, b in broken}
    budget = [10_000]

    def extend(path: list[int]) -> bool:
        budget[0] -= 1
        if len(path) == n:
            return not closed or (path[-1], path[0]) not in apart
        for nearest in sorted(set(range(n)) - set(path)):
            if (path[-1], nearest) not in apart and budget[0] > 0:
                path.append(nearest)
                if extend(path):
                    return True
                path.pop()
        return False

    for start in range(1 if closed else n):
        path = [start]
        if extend(path):
            return tuple(path)
    return None


def make_machine(text: str, tiles: int = 0) -> Machine:
    """Build the machine that ``text`` names: a name by ``GRAMMAR``, or a YAML file.

    Args:
        tiles: Tiles of one rank; 0: a whole RDU. With fewer tiles than an RDU, several ranks share an RDU.
    Raises:
        InvalidArgument: an unknown platform, or a file with unexpected content.
    """
    if text.endswith((".yaml", ".yml")):
        return _read_machine(Path(text), tiles)
    racks = _RACKS.fullmatch(text)
    plain = _NAME.fullmatch(text)
    if racks is not None:
        return build_machine(text, find_node(racks[3]), int(racks[2]), int(racks[1]), tiles)
    if plain is None:
        hint = suggest(text, [f"1x{name}" for name in NODES])
        raise InvalidArgument(f"unknown topology {text[:80]!r}; expected {GRAMMAR}.{hint}")
    return build_machine(text, find_node(plain[2]), int(plain[1] or 1), 1, tiles)


def build_machine(
    name: str, node: NodeSpec, nodes: int, racks: int = 1, tiles: int = 0,
    links: Mapping[str, Mapping[str, Any]] | None = None, add_gb_s: float | None = None,
    figures: str = "assumed: defaults of links.yaml",
) -> Machine:  # fmt: skip
    """Build ``racks`` racks of ``nodes`` nodes; ``links`` replaces single defaults, by level.

    Raises:
        InvalidArgument: fewer than one node or rack, or an RDU is not a multiple of a rank's tiles.
    """
    tiles = tiles or node.chip.tiles
    if min(nodes, racks) < 1:
        raise InvalidArgument(f"{name!r} has {racks} racks of {nodes} nodes; expected at least one of each")
    if not 1 <= tiles <= node.chip.tiles or node.chip.tiles % tiles:
        raise InvalidArgument(
            f"a rank of {tiles} tiles does not divide an RDU of {node.platform}; expected tiles that divide "
            f"{node.chip.tiles}"
        )
    sizes = (node.chip.tiles // tiles, node.rdus_per_xrdu, node.xrdus, nodes, racks)
    defaults = load_defaults()
    levels = tuple(
        _level(level, size, {**defaults[level], **(links or {}).get(level, {})})
        for level, size in zip(LEVELS, sizes, strict=True)
    )
    return Machine(name, levels, (add_gb_s or defaults["add_gb_s"]) * 1e9, figures)


def flat_machine(name: str, ranks: int, link: Mapping[str, Any], add_gb_s: float) -> Machine:
    """Build a machine of one level: ``ranks`` ranks that ``link`` joins (wiring, ports, latency_us, gb_s)."""
    return Machine(name, (_level("rank", ranks, link),), add_gb_s * 1e9, "given")


def _level(name: str, size: int, link: Mapping[str, Any]) -> Level:
    return Level(
        name, size, Wiring(link["wiring"]), int(link["ports"]), float(link["latency_us"]) * 1e-6,
        float(link["gb_s"]) * 1e9,
    )  # fmt: skip


@cache
def load_defaults() -> Mapping[str, Any]:
    """Load the assumed figures that come with rdukit."""
    import yaml  # machines with explicit levels read no file

    text = files("rdukit.collectives").joinpath("links.yaml").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = yaml.safe_load(text)
    return loaded


def _read_machine(path: Path, tiles: int) -> Machine:
    from rdukit.strict_yaml import read_yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} cannot be read: {cause}; expected a YAML file, or {GRAMMAR}") from cause
    marked = read_yaml(text)
    if marked.faults:
        fault = marked.faults[0]
        raise InvalidArgument(f"{path}:{fault.mark.line}: {fault.message}")
    value = _mapping(marked.value, f"{path}", _FILE_KEYS)
    if "platform" not in value:
        raise InvalidArgument(f"{path} names no platform; expected platform: one of {', '.join(sorted(NODES))}")
    links = {
        level: _link(link, f"{path}: links.{level}")
        for level, link in _mapping(value.get("links", {}), f"{path}: links", frozenset(LEVELS)).items()
    }
    add = value.get("add_gb_s")
    return build_machine(
        str(path), find_node(str(value["platform"])), _whole(value.get("nodes", 1), f"{path}: nodes"),
        _whole(value.get("racks", 1), f"{path}: racks"), tiles, links,
        None if add is None else _positive(add, f"{path}: add_gb_s"),
        f"assumed: {path}, and links.yaml for values that it lacks",
    )  # fmt: skip


def _link(value: object, place: str) -> dict[str, Any]:
    link = dict(_mapping(value, place, _LINK_KEYS))
    if "wiring" in link and link["wiring"] not in set(Wiring):
        raise InvalidArgument(f"{place}.wiring is {link['wiring']!r}; expected {' or '.join(Wiring)}")
    if "ports" in link:
        _whole(link["ports"], f"{place}.ports")
    for key in {"latency_us", "gb_s"} & link.keys():
        _positive(link[key], f"{place}.{key}")
    return link


def _mapping(value: object, place: str, legal: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{place} is {value!r}; expected keys of {', '.join(sorted(legal))}")
    unknown = sorted(map(str, value.keys() - legal))
    if unknown:
        raise InvalidArgument(
            f"{place} has {unknown[0]!r}; expected {', '.join(sorted(legal))}.{suggest(unknown[0], legal)}"
        )
    return value


def _whole(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANKS:
        raise InvalidArgument(f"{place} is {value!r}; expected a whole number from 1 to {MAX_RANKS}")
    return value


def _positive(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise InvalidArgument(f"{place} is {value!r}; expected a number above 0")
    return float(value)


def break_links(machine: Machine, names: Sequence[str]) -> Machine:
    """Return the machine with some links broken, both directions.

    Names are paths of units: ``node3/xrdu1/rdu0-rdu1`` is the link of a pair, ``node3.port0`` a port. Levels of one
    unit are left out.

    Raises:
        InvalidArgument: the machine has no such link.
    """
    links = {link.name: link for link in (_parse_link(machine, name) for name in names)}
    return replace(machine, broken=tuple(links.values()))


def _parse_link(machine: Machine, name: str) -> MachineLink:
    *above, last = name.split("/")
    shown = [i for i, level in enumerate(machine.levels) if level.size > 1]
    pair = re.fullmatch(r"([a-z]+)(\d{1,6})-([a-z]+)(\d{1,6})", last)
    port = re.fullmatch(r"([a-z]+)(\d{1,6})\.port(\d{1,6})", last)
    kind = pair[1] if pair else port[1] if port else ""
    index = next((i for i in shown if machine.levels[i].name == kind), None)
    if index is None or (pair is not None and pair[3] != kind):
        raise _no_link(machine, name)
    level = machine.levels[index]
    parent = 0
    outer = [i for i in reversed(shown) if i > index]
    if len(outer) != len(above):
        raise _no_link(machine, name)
    for i, word in zip(outer, above, strict=True):
        unit = re.fullmatch(rf"{machine.levels[i].name}(\d{{1,6}})", word)
        if unit is None or int(unit[1]) >= machine.levels[i].size:
            raise _no_link(machine, name)
        parent = parent * machine.levels[i].size + int(unit[1])
    if pair is not None and level.wiring is Wiring.MESH:
        a, b = sorted((int(pair[2]), int(pair[4])))
        if a < b < level.size:
            return MachineLink("/".join([*above, f"{kind}{a}-{kind}{b}"]), index, parent, a, b)
    if port is not None and level.wiring is Wiring.SWITCH and int(port[2]) < level.size and int(port[3]) < level.ports:
        return MachineLink("/".join([*above, f"{kind}{int(port[2])}.port{int(port[3])}"]), index, parent, int(port[2]))
    raise _no_link(machine, name)


def _no_link(machine: Machine, name: str) -> InvalidArgument:
    """Return the error for an unknown link, with one example of each level."""
    examples, above = list[str](), ""
    for level in reversed(machine.levels):
        if level.size > 1:
            unit = f"{level.name}0"
            examples.append(above + (f"{unit}-{level.name}1" if level.wiring is Wiring.MESH else f"{unit}.port0"))
            above += f"{unit}/"
    return InvalidArgument(f"{machine.name} has no link {name[:80]!r}; expected names such as {', '.join(examples)}")
