"""A PEF's sections and fusions as an SVG picture. Pure; standard library only.

Sections are boxes from top to bottom in schedule order, in a column for each type; a box names its operators, the rule
or heuristic that chose it and its projected time. Lines are values that a section passes to a later one through device
memory, with their bytes. Colours follow the viewer's light or dark scheme. Source: ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from rdukit.files.svg import svg_document, svg_text
from rdukit.pef.model import Graph, Pef, Section, SectionType, SymbolKind
from rdukit.units import format_bytes, format_seconds

BOX_WIDTH: Final = 316
COLUMN_GAP: Final = 130
ROW_GAP: Final = 30
LINE_HEIGHT: Final = 15
MARGIN: Final = 24
#: Operators named in one box; the rest are counted.
MAX_OPERATORS: Final = 12
_CHARACTERS: Final = 42

#: Kinds of symbols that are drawn as lines: data of a step, not weights.
_HANDED_OVER: Final = frozenset({SymbolKind.ACTIVATION, SymbolKind.OUTPUT, SymbolKind.GRADIENT})

#: Columns, left to right; absent types have no column.
_COLUMNS: Final = (
    (SectionType.FWD, "forward (fwd)"), (SectionType.BCKWD, "backward (bckwd)"),
    (SectionType.GRADNORM, "gradient norm (gradnorm)"), (SectionType.REDUCE, "reduce"),
    (SectionType.OPT, "optimizer (opt)"),
)  # fmt: skip

_LIGHT: Final = """\
  .box { stroke-width: 1.5; } .fwd { fill: #e8f1fd; stroke: #1f6feb; } .bckwd { fill: #fdf0e3; stroke: #bc6a0a; }
  .opt, .gradnorm, .reduce { fill: #e9f6ec; stroke: #1a7f37; }
  .line { fill: none; stroke: #8c959f; stroke-width: 1.2; } .tip { fill: #8c959f; }
  .bytes { font-size: 10px; fill: #57606a; stroke: #ffffff; stroke-width: 3px; paint-order: stroke; }
"""
_DARK: Final = """\
    .fwd { fill: #10233f; } .bckwd { fill: #33230f; } .opt, .gradnorm, .reduce { fill: #10291a; }
    .line { stroke: #6e7681; } .tip { fill: #6e7681; } .bytes { fill: #9198a1; stroke: #0d1117; }
"""


@dataclass(frozen=True, slots=True)
class SectionBox:
    """A section's box, in pixels. ``lines``: CSS class and text of each."""

    section: Section
    x: int
    y: int
    height: int
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """``symbols`` that section ``source`` writes and the later ``target`` reads, with their total bytes."""

    source: int
    target: int
    symbols: tuple[str, ...]
    bytes: int


def draw_pef(pef: Pef) -> str:
    """Draw all graphs, one under the other, as a complete SVG document."""
    parts: list[str] = []
    y = MARGIN + 16
    width = 0
    for graph in pef.graphs.values():
        heading = f"{pef.name} · {graph.name} · {pef.mode} · {pef.arch}, {pef.num_tiles} tiles"
        parts.append(svg_text(MARGIN, y, "title", heading))
        boxes, bottom, right = _place(pef, graph, y + 30)
        headings = {box.section.type: box.x for box in boxes}
        parts += [svg_text(headings[kind], y + 26, "dim", label) for kind, label in _COLUMNS if kind in headings]
        by_id = {box.section.id: box for box in boxes}
        edges = find_edges(pef, graph)
        parts += [_line(by_id[edge.source], by_id[edge.target], edge) for edge in edges]
        parts += [_box(box) for box in boxes]
        parts += _labels(by_id, edges)
        y, width = bottom + 3 * MARGIN, max(width, right, MARGIN + 10 * len(heading))
    height = max(y - MARGIN, 2 * MARGIN)
    width += MARGIN
    defs = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
    )
    return svg_document(parts, width, height, f"Sections of {pef.name}", _LIGHT, _DARK, defs)


def find_edges(pef: Pef, graph: Graph) -> list[Edge]:
    """Find the edges between scheduled sections, one for each pair: only activations, outputs and gradients."""
    made_by: dict[str, int] = {}
    edges: list[Edge] = []
    for number in graph.schedule:
        section = pef.sections[number]
        read: dict[int, list[str]] = {}
        for name in dict.fromkeys(section.inputs):
            if name in made_by and pef.symbols[name].kind in _HANDED_OVER:
                read.setdefault(made_by[name], []).append(name)
        for source, names in read.items():
            edges.append(Edge(source, number, tuple(names), sum(pef.symbols[n].bytes for n in names)))
        made_by.update(dict.fromkeys(section.outputs, number))
    return edges


def _place(pef: Pef, graph: Graph, top: int) -> tuple[list[SectionBox], int, int]:
    """Place boxes, each type from the top of its column; return them with the lowest and rightmost pixel."""
    sections = [pef.sections[number] for number in graph.schedule]
    present = [kind for kind, _ in _COLUMNS if any(s.type is kind for s in sections)]
    next_y = dict.fromkeys(present, top + 8)
    boxes = []
    for section in sections:
        x = MARGIN + present.index(section.type) * (BOX_WIDTH + COLUMN_GAP)
        lines = _describe(section)
        height = len(lines) * LINE_HEIGHT + 14
        boxes.append(SectionBox(section, x, next_y[section.type], height, lines))
        next_y[section.type] += height + ROW_GAP
    bottom = max((box.y + box.height for box in boxes), default=top)
    right = max((box.x + BOX_WIDTH for box in boxes), default=0)
    return boxes, bottom, right + COLUMN_GAP


def _describe(section: Section) -> tuple[tuple[str, str], ...]:
    origin = f"rule {section.rule}, " if section.rule else ""
    lines = [("name", f"{section.id}  {section.name}"), ("dim", f"{origin}heuristic {section.heuristic}")]
    lines += [("", f"• {name}") for name in section.operators[:MAX_OPERATORS]]
    if len(section.operators) > MAX_OPERATORS:
        lines.append(("dim", f"… and {len(section.operators) - MAX_OPERATORS} more operators"))
    used = f"{section.resources.pcus} PCU, {section.resources.pmus} PMU"
    lines.append(("dim", f"{used}, projected {format_seconds(section.cost.seconds)}"))
    return tuple(lines)


def _box(box: SectionBox) -> str:
    kind = box.section.type.value
    title = escape(f"{box.section.name}: {box.section.why}\n{' '.join(box.section.operators)}")
    rectangle = f'<rect class="box {kind}" x="{box.x}" y="{box.y}" width="{BOX_WIDTH}" height="{box.height}" rx="6"/>'
    lines = [
        svg_text(box.x + 10, box.y + 5 + LINE_HEIGHT * (index + 1), style, _short(text))
        for index, (style, text) in enumerate(box.lines)
    ]
    return f"<g><title>{title}</title>{rectangle}{''.join(lines)}</g>"


def _line(source: SectionBox, target: SectionBox, edge: Edge) -> str:
    label = escape(
        f"{source.section.name} → {target.section.name}: {format_bytes(edge.bytes)} ({', '.join(edge.symbols)})"
    )
    return f'<path class="line" marker-end="url(#tip)" d="{_path(source, target)}"><title>{label}</title></path>'


def _path(source: SectionBox, target: SectionBox) -> str:
    """Route a line: straight down to the next box, around the right side to a later one, or into another column."""
    if source.x == target.x:
        if target.y - (source.y + source.height) <= ROW_GAP:
            x = source.x + BOX_WIDTH // 2
            return f"M{x} {source.y + source.height} L{x} {target.y}"
        x, start, end = source.x + BOX_WIDTH, source.y + source.height - 12, target.y + 12
        bend = x + min(COLUMN_GAP - 60, 20 + (end - start) // 12)
        return f"M{x} {start} C{bend} {start} {bend} {end} {x} {end}"
    forward = source.x < target.x
    x1, x2 = (source.x + BOX_WIDTH, target.x) if forward else (source.x, target.x + BOX_WIDTH)
    y1, y2 = source.y + source.height // 2, target.y + target.height // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"


def _labels(boxes: dict[int, SectionBox], edges: Sequence[Edge]) -> list[str]:
    """Label each line's start with its bytes; labels of lines that start at one place are stacked."""
    used: dict[tuple[int, int], int] = {}
    found = []
    for edge in edges:
        source, target = boxes[edge.source], boxes[edge.target]
        if source.x == target.x and target.y - (source.y + source.height) <= ROW_GAP:
            x, y = source.x + BOX_WIDTH // 2 + 6, source.y + source.height + 18
        elif source.x == target.x:
            x, y = source.x + BOX_WIDTH + 6, source.y + source.height - 16
        elif source.x < target.x:
            x, y = source.x + BOX_WIDTH + 6, source.y + source.height // 2 + 12
        else:
            x, y = source.x - COLUMN_GAP // 2, source.y + source.height // 2 + 12
        count = used[x, y] = used.get((x, y), 0) + 1
        sign = -1 if source.x == target.x else 1
        found.append(svg_text(x, y + sign * 11 * (count - 1), "bytes", f"{format_bytes(edge.bytes)} → {edge.target}"))
    return found


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS - 2 else f"{text[: _CHARACTERS - 3]}…"
