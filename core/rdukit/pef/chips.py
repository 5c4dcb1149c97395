"""A PEF over several chips: the memory of each chip, the traffic between them, and the projected time of a step. Pure.

A section runs on one chip, on several (each does its own part), or on the host. A value is in the memory of the chip
that computes it, and a gradient in that of the value's chip. If several chips compute gradients of one value, these are
added up on arrival, in chip order: they take the memory of one. A parameter or input without pieces is in the memory of
every chip that reads it; with pieces, each chip holds its own.

A section streams the values of other chips over links, and sends gradients to the chips of their values. So traffic is
that of reads and gradients, and counts only data that a section uses. Chips that add up gradients of equal parameters
(``REDUCED``) each add one slice, and receive the others' slices.

Source: ours. One process, a number of RDUs that the compile fixes, up to eight: SDK reference 18, compiler reference
4.3.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.errors import DoesNotFit
from rdukit.hardware import find_chip
from rdukit.pef.memory import lease_bytes, plan_memory
from rdukit.pef.model import Pef, Section, SectionType, Symbol, SymbolKind
from rdukit.units import format_bytes

#: Heuristic of sections that join the chips' rows of a gradient; the rows stay on their chips.
JOINED: Final = "join"
#: Heuristic of sections that add up the gradients of a parameter on several chips.
REDUCED: Final = "chip_reduce"
#: Name in reports → kinds of symbols.
PURPOSES: Final = {
    SymbolKind.PARAMETER: "parameters", SymbolKind.BUFFER: "buffers", SymbolKind.STATE: "optimizer states",
    SymbolKind.GRADIENT: "gradients", SymbolKind.INPUT: "inputs",
}  # fmt: skip

#: (from, to) → bytes over the link between two chips.
Traffic = Mapping[tuple[int, int], int]


def chip_count(pef: Pef) -> int:
    """Return the chips that the PEF is compiled for."""
    return pef.chips.count if pef.chips is not None else 1


def symbol_chips(pef: Pef) -> dict[str, tuple[int, ...]]:
    """Return the chips that hold each symbol; none for one that only the host holds."""
    plan = pef.chips
    if plan is None:
        return dict.fromkeys(pef.symbols, (0,))
    made: dict[str, set[int]] = defaultdict(set)
    read: dict[str, set[int]] = defaultdict(set)
    for section, chips in zip(pef.sections, plan.sections, strict=True):
        for name in section.outputs:
            made[name].update(chips)
        for name in section.inputs if section.type in {SectionType.FWD, SectionType.BCKWD} else ():
            read[name].update(chips)
    divided = set(plan.divided)

    def chips_of(symbol: Symbol) -> tuple[int, ...]:
        if symbol.name in divided:
            return tuple(range(plan.count))
        found = made if symbol.name in made and symbol.kind not in _HELD_BY_READERS else read
        return tuple(sorted(found[symbol.name]))

    found = {symbol.name: chips_of(symbol) for symbol in pef.symbols.values()}
    for value, gradients in _flowing(pef):
        if len(found[value]) == 1:
            found.update(dict.fromkeys(gradients, found[value]))
    return found | {name: found[parameter] for name, parameter in plan.follows.items()}


def _flowing(pef: Pef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the values between sections, with the symbols of each value's gradients."""
    for graph in pef.graphs.values():
        for value, gradients in graph.gradients.items():
            if pef.symbols[value].kind in {SymbolKind.ACTIVATION, SymbolKind.OUTPUT}:
                yield value, tuple(name for name in gradients if pef.symbols[name].kind is SymbolKind.GRADIENT)


_HELD_BY_READERS: Final = frozenset(
    {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER, SymbolKind.SEED, SymbolKind.PIECE}
)


def held_bytes(pef: Pef, symbol: Symbol) -> int:
    """Return the bytes of a symbol on each chip that holds it; none for a piece, which is in its parent's memory."""
    if pef.chips is None:
        return symbol.bytes
    if symbol.kind is SymbolKind.PIECE:
        return 0
    parent = pef.chips.follows.get(symbol.name, symbol.name)
    is_divided = parent in pef.chips.divided and symbol.shape == pef.symbols[parent].shape
    return symbol.bytes // pef.chips.count if is_divided else symbol.bytes


def chip_pef(pef: Pef, chip: int) -> Pef:
    """Return the PEF reduced to the memory of ``chip``: symbols have their bytes on that chip, or none."""
    if pef.chips is None:
        return pef
    places = symbol_chips(pef)

    def here(symbol: Symbol) -> Symbol:
        size = held_bytes(pef, symbol) if chip in places[symbol.name] else 0
        return replace(symbol, dtype="uint8", shape=(size,), offset=0, scale="")

    symbols = {name: here(symbol) for name, symbol in pef.symbols.items()}
    order = {name: section.id for section in pef.sections for name in section.outputs}
    added: dict[str, str] = {}
    for _, gradients in _flowing(pef):
        first, *others = sorted(gradients, key=lambda name: order.get(name, -1)) or [""]
        added.update(dict.fromkeys(others, first))
    return replace(pef, symbols=symbols, chips=None, sections=tuple(_seen(s, symbols, added) for s in pef.sections))


def _seen(section: Section, symbols: Mapping[str, Symbol], added: Mapping[str, str]) -> Section:
    """Return a section whose ``shares`` and ``holds`` are those on one chip, by the bytes of ``symbols`` there.

    A gradient's sum over chips, and its joined rows, are computed in the memory of this chip's part.
    """
    shares = {
        output: source
        for output, source in section.shares.items()
        if symbols[source].bytes or symbols[source].kind is SymbolKind.PIECE or not symbols[output].bytes
    }
    if section.heuristic in {JOINED, REDUCED}:
        own = [name for name in section.inputs if symbols[name].bytes]
        shares = {section.outputs[0]: own[0]} if len(own) == 1 else {}
    shares |= {name: added[name] for name in section.outputs if name in added and symbols[name].bytes}
    holds = {name: size for name, size in section.holds.items() if symbols[name].bytes}
    return replace(section, shares=shares, holds=holds, scratch_bytes=0)


@dataclass(frozen=True, slots=True)
class ChipShare:
    """Bytes that one chip holds and moves in a step. ``activations``: at the peak, including passing values."""

    chip: int
    held: Mapping[str, int]
    peak_bytes: int
    received_bytes: int
    sent_bytes: int
    sections: int

    @property
    def activations(self) -> int:
        """Bytes at the peak that are not in another entry."""
        return self.peak_bytes - sum(self.held.values())


def chip_shares(pef: Pef) -> tuple[ChipShare, ...]:
    """Return the share of each chip in one step of the PEF's main graphs."""
    places, found = symbol_chips(pef), []
    received, sent = chip_traffic(pef, step_traffic(pef)) if pef.chips is not None else ((0,), (0,))
    for chip in range(chip_count(pef)):
        seen = chip_pef(pef, chip)
        held = dict.fromkeys(dict.fromkeys(PURPOSES.values()), 0)
        for symbol in pef.symbols.values():
            purpose = PURPOSES.get(symbol.kind)
            if purpose not in {None, "gradients"} and chip in places[symbol.name]:
                held[str(purpose)] += held_bytes(pef, symbol)
        followed = (name for g in pef.main_graphs() for p, names in g.gradients.items()
                    if pef.symbols[p].kind is SymbolKind.PARAMETER for name in names)  # fmt: skip
        held["gradients"] = sum(held_bytes(pef, pef.symbols[n]) for n in followed if chip in places[n])
        found.append(
            ChipShare(
                chip, held, _peak(seen), received[chip], sent[chip],
                sum(chip in chips for chips in pef.chips.sections) if pef.chips is not None else len(pef.sections),
            )
        )  # fmt: skip
    return tuple(found)


def _peak(pef: Pef) -> int:
    return max((plan_memory(pef, graph).device_peak_bytes for graph in pef.graphs.values()), default=0)


def section_traffic(pef: Pef, section: Section, places: Mapping[str, Sequence[int]]) -> dict[tuple[int, int], int]:
    """Return the bytes that one run of a section moves over each link.

    Args:
        places: result of ``symbol_chips``.
    """
    moved: dict[tuple[int, int], int] = defaultdict(int)
    chips = pef.chips.sections[section.id] if pef.chips is not None else (0,)
    if len(chips) > 1 and section.heuristic != REDUCED:
        return moved  # each chip works on its own data
    for name in section.inputs:
        for chip in chips if places[name] and section.heuristic != REDUCED else ():
            if chip not in places[name]:
                moved[places[name][0], chip] += pef.symbols[name].bytes
    for name in section.outputs:
        if len(chips) == 1 and places[name] and chips[0] not in places[name]:
            moved[chips[0], places[name][0]] += pef.symbols[name].bytes
    if section.heuristic == REDUCED:  # each pair of chips exchanges a slice of its part, and one of the sum
        for source, target in permutations(chips, 2):
            moved[source, target] += 2 * pef.symbols[section.outputs[0]].bytes // len(chips)
    return moved


def step_traffic(pef: Pef, sections: Iterable[int] | None = None) -> Traffic:
    """Return the bytes over each link in a run of ``sections``; without them, in a step of all main graphs."""
    places = symbol_chips(pef)
    total: dict[tuple[int, int], int] = defaultdict(int)
    chosen = sections if sections is not None else (i for graph in pef.main_graphs() for i in graph.schedule)
    for number in chosen if pef.chips is not None else ():
        for link, size in section_traffic(pef, pef.sections[number], places).items():
            total[link] += size
    return total


def chip_traffic(pef: Pef, traffic: Traffic) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes that each chip receives and sends; empty on one chip."""
    chips = range(chip_count(pef)) if pef.chips is not None else range(0)
    return (
        tuple(sum(size for (_, target), size in traffic.items() if target == chip) for chip in chips),
        tuple(sum(size for (source, _), size in traffic.items() if source == chip) for chip in chips),
    )


def projected_run(pef: Pef, sections: Sequence[Section]) -> float:
    """Return the seconds from the first section's start to the last one's end: chips wait only for the values that they
    read.
    """
    if pef.chips is None:
        return sum(section.cost.seconds for section in sections)
    ready: dict[str, float] = {}
    free = [0.0] * pef.chips.count
    end = 0.0
    for section in sections:
        chips = pef.chips.sections[section.id]
        start = max((ready.get(name, 0.0) for name in section.inputs), default=0.0)
        start = max([start, *(free[chip] for chip in chips)])
        done = start + section.cost.seconds
        for chip in chips:
            free[chip] = done
        ready.update(dict.fromkeys(section.outputs, done))
        end = max(end, done)
    return end


def require_room(pef: Pef) -> None:
    """Check that each chip's memory suffices.

    Raises:
        DoesNotFit: a chip has too little memory; the message has the bytes, and a number of chips to try.
    """
    room = find_chip(pef.arch).ddr_bytes
    fullest = max(_peak(chip_pef(pef, chip)) for chip in range(chip_count(pef)))
    if fullest <= room:
        return
    count = chip_count(pef)
    more = next((n for n in (2, 4, 8) if n > count and fullest * count <= n * room), 8)
    where = f"each of {count} RDUs" if count > 1 else "one RDU"
    raise DoesNotFit(
        f"{pef.name} takes {format_bytes(fullest)} of {where}, but an RDU of {pef.arch} has {format_bytes(room)}; "
        f"divide the model among more RDUs with --n-chips {more} --tensor-parallel "
        "weight", needed_bytes=fullest, room_bytes=room,
    )  # fmt: skip


def leased_bytes(pef: Pef) -> int:
    """Return the bytes of device memory that a lease for this PEF requests: on several chips, those of the fullest on
    each.
    """
    if pef.chips is None:
        return lease_bytes(pef)
    return pef.chips.count * max(lease_bytes(chip_pef(pef, chip)) for chip in range(pef.chips.count))


def describe_chips(pef: Pef) -> dict[str, Any]:
    """Return the chips' part of ``rdukit pef explain``, ready for JSON."""
    plan = pef.chips
    if plan is None:
        return {}
    return {
        "chips": {
            "count": plan.count,
            "how": plan.how,
            "shares": [
                {
                    "chip": share.chip, "sections": share.sections,
                    "bytes": {**share.held, "activations": share.activations, "peak": share.peak_bytes},
                    "received_bytes": share.received_bytes, "sent_bytes": share.sent_bytes,
                }
                for share in chip_shares(pef)
            ],
            "links": [{"from": a, "to": b, "bytes": size} for (a, b), size in sorted(step_traffic(pef).items())],
            "replicated": dict(plan.replicated),
        }
    }  # fmt: skip


def chip_lines(pef: Pef) -> list[str]:
    """Return a line for each chip: its memory, and a step's traffic; empty on one chip."""
    return [
        f"chip {share.chip} of {chip_count(pef)}: parameters {format_bytes(share.held['parameters'])}, "
        f"peak {format_bytes(share.peak_bytes)}, received {format_bytes(share.received_bytes)}, "
        f"sent {format_bytes(share.sent_bytes)} a step"
        for share in (chip_shares(pef) if pef.chips is not None else ())
    ]


def chip_tables(pef: Pef) -> list[Table]:
    """Return the memory and traffic of each chip, and undivided operators, as tables; empty on one chip."""
    plan = pef.chips
    if plan is None:
        return []
    rows = tuple(
        (
            str(share.chip), str(share.sections), *(format_bytes(size) for size in share.held.values()),
            *map(format_bytes, (share.activations, share.peak_bytes, share.received_bytes, share.sent_bytes)),
        )
        for share in chip_shares(pef)
    )  # fmt: skip
    names = tuple(dict.fromkeys(PURPOSES.values()))
    columns = ("chip", "sections", *names, "activations", "peak", "received", "sent")
    title = f"Divided by {plan.how} over {plan.count} chips (a step's bytes; received and sent over links)"
    tables = [Table(title, columns, rows, frozenset(columns))]
    if plan.replicated:
        tables.append(Table("Not divided", ("operator or graph", "why"), tuple(plan.replicated.items())))
    return tables
