"""Differences between two PEFs: options, inputs, sections, kernels, cost. Pure.

Sections are matched by content, not by number: first those of one graph and type with the same operators, then
those that share the most operators (a fusion that grew or was cut), then by name. Native libraries are compared by
presence only: two builds of one kernel differ in bytes and not in meaning. Source: ours.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.pef.file import LoadedPef
from rdukit.pef.inspect import moved_bytes, projected_cycles, projected_seconds, total_flops
from rdukit.pef.model import Pef, Section
from rdukit.units import format_bytes, format_count, format_seconds

#: Fields of a PEF that are plain values.
_OPTIONS: Final = (
    "name", "mode", "arch", "num_tiles", "precision", "inference", "compiler_version", "torch_version",
    "cpu_capability",
)  # fmt: skip

#: Compared fields of two matched sections; the other fields are figures, or compared elsewhere.
_SECTION_FIELDS: Final = (
    "id", "name", "operators", "rule", "heuristic", "why", "kernel", "inputs", "outputs", "decisions",
    "scratch_bytes", "shares", "holds",
)  # fmt: skip

_TEXT_LENGTH: Final = 72


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of two PEFs. ``before`` is None for additions, ``after`` for removals; otherwise both are plain
    values.
    """

    #: options, hyperparameters, metadata, signature, chips, graphs, symbols, sections, kernels or cost.
    area: str
    #: Subject of the difference: an option, a symbol, ``section_name (fwd)``.
    subject: str
    #: The field that differs; "" when the subject as a whole was added or removed.
    field: str
    before: Any
    after: Any

    @property
    def kind(self) -> str:
        """``added``, ``removed`` or ``changed``."""
        if self.field:
            return "changed"
        return "added" if self.before is None else "removed"


def diff_pefs(before: LoadedPef, after: LoadedPef) -> tuple[Change, ...]:
    """Return every difference, by area in the order of ``Change.area``; empty if and only if the PEFs are
    equivalent.
    """
    a, b = before.pef, after.pef
    changes = [
        Change("options", name, "value", getattr(a, name), getattr(b, name))
        for name in _OPTIONS
        if getattr(a, name) != getattr(b, name)
    ]
    for area in ("hyperparameters", "metadata", "signature"):
        changes += _diff_mappings(area, _flat(getattr(a, area)), _flat(getattr(b, area)))
    changes += _diff_mappings("chips", _flat(_chips(a)), _flat(_chips(b)))
    changes += _diff_records("graphs", _records(a.graphs), _records(b.graphs))
    changes += _diff_records("symbols", _records(a.symbols), _records(b.symbols))
    changes += _diff_sections(a, b)
    changes += _diff_kernels(before, after)
    changes += [
        Change("cost", name, "value", old, new)
        for name, old, new in zip(_totals(a), _totals(a).values(), _totals(b).values(), strict=True)
        if old != new
    ]
    return tuple(changes)


def describe_diff(before: LoadedPef, after: LoadedPef) -> dict[str, Any]:
    """Return the differences as plain containers, ready for JSON."""
    changes = diff_pefs(before, after)
    return {
        "before": str(before.path),
        "after": str(after.path),
        "equal": not changes,
        "changes": [asdict(change) | {"kind": change.kind} for change in changes],
    }


def diff_tables(changes: Sequence[Change]) -> list[Table]:
    """Return a table for each area: subject, field, before, after. Cycles and seconds are the cost model's
    projection.
    """
    tables = []
    for area in dict.fromkeys(change.area for change in changes):
        rows = tuple(
            (
                {"added": "+", "removed": "-", "changed": "~"}[change.kind], change.subject, change.field,
                _text(change.before, change), _text(change.after, change),
            )
            for change in changes
            if change.area == area
        )  # fmt: skip
        title = "cost (projected)" if area == "cost" else area
        tables.append(Table(f"{title}: {len(rows)} differ", ("", "what", "field", "before", "after"), rows))
    return tables


def _diff_mappings(area: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    changes = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new or name not in old:
            changes.append(Change(area, name, "", old.get(name), new.get(name)))
        elif _plain(old[name]) != _plain(new[name]):
            changes.append(Change(area, name, "value", old[name], new[name]))
    return changes


def _diff_records(
    area: str, old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
    """Compare records: records on one side as a whole, the others field by field."""
    changes: list[Change] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new or name not in old:
            changes.append(Change(area, name, "", old.get(name), new.get(name)))
            continue
        changes += _diff_fields(area, name, old[name], new[name])
    return changes


def _diff_fields(area: str, subject: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    return [
        Change(area, subject, field, old[field], new[field])
        for field in old
        if _plain(old[field]) != _plain(new[field])
    ]


def _diff_sections(a: Pef, b: Pef) -> list[Change]:
    pairs = pair_sections(a.sections, b.sections)
    changes: list[Change] = []
    for old, new in pairs:
        subject = old or new
        assert subject is not None
        label = f"{subject.name} ({subject.type})"
        if old is None or new is None:
            changes.append(
                Change("sections", label, "", old and _section_record(old), new and _section_record(new))
            )  # fmt: skip
        else:
            changes += _diff_fields("sections", label, _section_record(old), _section_record(new))
    return changes


def pair_sections(
    before: Sequence[Section], after: Sequence[Section]
) -> list[tuple[Section | None, Section | None]]:  # fmt: skip
    """Pair corresponding sections in the order of ``before``; sections only in ``after`` come last."""
    partner: dict[int, Section] = {}
    waiting: dict[tuple[object, ...], list[Section]] = {}
    for section in after:
        waiting.setdefault(_section_key(section), []).append(section)
    for section in before:
        if found := waiting.get(_section_key(section)):
            partner[section.id] = found.pop(0)
    left = sorted((s for sections in waiting.values() for s in sections), key=lambda s: s.id)
    makers = {(s.graph, s.type, name): s for s in left for name in s.operators}
    names = {(s.graph, s.type, s.name): s for s in left}
    free = {s.id for s in left}
    for section in (s for s in before if s.id not in partner):
        shared: dict[int, int] = {}
        for name in section.operators:
            other = makers.get((section.graph, section.type, name))
            if other is not None and other.id in free:
                shared[other.id] = shared.get(other.id, 0) + 1
        best = max(shared, key=lambda number: (shared[number], -number), default=None)
        if best is None and (same := names.get((section.graph, section.type, section.name))) and same.id in free:
            best = same.id
        if best is not None:
            free.remove(best)
            partner[section.id] = after[best]
    pairs: list[tuple[Section | None, Section | None]] = [(s, partner.get(s.id)) for s in before]
    return pairs + [(None, s) for s in left if s.id in free]


def _section_key(section: Section) -> tuple[object, ...]:
    return (section.graph, section.type, section.operators or section.name)


def _section_record(section: Section) -> dict[str, Any]:
    record = {name: getattr(section, name) for name in _SECTION_FIELDS}
    figures = {f"resources.{k}": v for k, v in asdict(section.resources).items()}
    return record | figures | {f"cost.{k}": v for k, v in asdict(section.cost).items()}


def _diff_kernels(before: LoadedPef, after: LoadedPef) -> list[Change]:
    def records(loaded: LoadedPef) -> dict[str, dict[str, Any]]:
        return {
            digest[:12]: {"operators": len(kernel.nodes), "native": digest in loaded.natives}
            for digest, kernel in sorted(loaded.kernels.items())
        }

    return _diff_records("kernels", records(before), records(after))


def _totals(pef: Pef) -> dict[str, float]:
    return {
        "cycles": projected_cycles(pef),
        "seconds": projected_seconds(pef),
        "flops": total_flops(pef),
        "moved_bytes": sum(moved_bytes(section) for section in pef.sections),
        "region_bytes": pef.region_bytes,
    }


def _records(things: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: asdict(thing) for name, thing in things.items()}


def _chips(pef: Pef) -> dict[str, Any]:
    return {} if pef.chips is None else asdict(pef.chips)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten ``{"a": {"b": 1}}`` to ``{"a.b": 1}``; an empty mapping stays as it is."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            found |= _flat(item, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = item
    return found


def _plain(value: Any) -> Any:
    """Convert tuples to lists, so that a PEF in memory equals the same PEF read from a file."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: Any, change: Change) -> str:
    if value is None:
        return "-"
    name = change.field if change.area == "sections" else change.subject if change.area == "cost" else ""
    if name in {"cost.seconds", "seconds"}:
        return format_seconds(value)
    if name.endswith("bytes") or name.startswith("cost.bytes"):
        return format_bytes(value)
    if name.startswith("cost.") or name in {"cycles", "flops"}:
        return format_count(value)
    if isinstance(value, Mapping) and not change.field:
        value = _summary(change.area, value)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        value = " ".join(value)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    if name == "kernel":
        return text[:12]
    return text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 3]}..."


def _summary(area: str, record: Mapping[str, Any]) -> str:
    """Describe a record that one side lacks, in a few words."""
    match area:
        case "sections":
            return " ".join(record["operators"]) or str(record["why"])
        case "symbols":
            return f"{record['kind']} {record['dtype']} {_shape(record['shape'])}"
        case "graphs":
            return f"{len(record['schedule'])} sections"
        case "kernels":
            return f"{record['operators']} operators{', native' if record['native'] else ''}"
        case _:
            return json.dumps(record, sort_keys=True, default=str)


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"
