"""Lineage as an SVG picture (pure): artifacts and jobs from left to right, in the order of their creation, without
scripts.

The console's page embeds the same picture and brings the style; a separate file includes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 190
HEIGHT: Final = 46
COLUMN_GAP: Final = 54
ROW_GAP: Final = 16
#: Height of the lane for a line that passes through a column.
LANE_HEIGHT: Final = 8
MARGIN: Final = 12
#: Largest number of nodes drawn; of a larger graph, those next to the artifact.
MAX_NODES: Final = 120
MAX_LABEL: Final = 25

#: Style of a picture in its own file; the console's style sheet has its own version.
STYLE: Final = (
    "svg.lineage{font:12px system-ui,sans-serif;background:#fff}"
    "svg.lineage rect{fill:#fff;stroke:#5d6878}svg.lineage .job rect{fill:#eef2f8}"
    "svg.lineage .focus rect{stroke:#1557c0;stroke-width:2.5}svg.lineage .gone{opacity:.55}"
    "svg.lineage text{fill:#1a2230}svg.lineage .sub{fill:#5d6878;font-size:11px}"
    "svg.lineage path{fill:none;stroke:#97a3b6;stroke-width:1.5}svg.lineage marker path{fill:#97a3b6;stroke:none}"
)


@dataclass(frozen=True, slots=True)
class LineageNode:
    """An artifact or a job of the picture. ``path``: its page below the console; ``is_gone``: it was deleted."""

    id: str
    label: str
    sub: str
    path: str
    is_job: bool
    is_gone: bool = False
    #: Colour of its state: a class of the console's style sheet; empty: no colour.
    tone: str = ""


@dataclass(frozen=True, slots=True)
class LineageEdge:
    """Edge from an input to its result; ``label`` is the slot."""

    source: str
    target: str
    label: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Positions of the nodes' upper left corners, and the picture's size."""

    at: Mapping[str, tuple[int, int]]
    #: Lanes by node and passed column: left end and height of the lines from that node.
    lanes: Mapping[tuple[str, int], tuple[int, int]]
    width: int
    height: int


def graph_of(
    artifacts: Iterable[Mapping[str, object]],
    links: Iterable[Mapping[str, object]],
    jobs: Iterable[Mapping[str, object]],
) -> tuple[list[LineageNode], list[LineageEdge]]:
    """Return the graph of a lineage from its API views."""
    nodes: dict[str, LineageNode] = {}
    edges: dict[LineageEdge, None] = {}
    for one in artifacts:
        id, gone = str(one["id"]), one.get("deleted_at") is not None
        sub = f"{one['kind']}, deleted" if gone else str(one["kind"])
        nodes[id] = LineageNode(
            id, str(one["name"]), f"{sub}  {id}", f"/console/artifacts/{id}", is_job=False, is_gone=gone
        )
        if one.get("job_id"):
            edges[LineageEdge(str(one["job_id"]), id, str(one.get("slot") or ""))] = None
    for link in links:
        if link["parent"] in nodes and link["child"] in nodes:
            edges[LineageEdge(str(link["parent"]), str(link["job_id"] or link["child"]), str(link["slot"]))] = None
    known = {str(job["id"]): job for job in jobs}
    for id in dict.fromkeys(end for edge in edges for end in (edge.source, edge.target) if end not in nodes):
        job = known.get(id, {})
        words = f"{job.get('box') or 'job'} {job.get('verb') or ''}".strip()
        nodes[id] = LineageNode(id, str(job.get("name") or words), id, f"/console/jobs/{id}", is_job=True)
    return list(nodes.values()), list(edges)


def nearest(nodes: Sequence[LineageNode], edges: Sequence[LineageEdge], focus: str, most: int = MAX_NODES) -> set[str]:
    """Return the ids of the ``most`` nodes closest to ``focus``."""
    beside: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in edges:
        beside[edge.source].append(edge.target)
        beside[edge.target].append(edge.source)
    order, seen = [focus], {focus}
    for id in order:
        for other in beside[id]:
            if other not in seen and len(order) < most:
                seen.add(other)
                order.append(other)
    return seen


def place(nodes: Sequence[LineageNode], edges: Sequence[LineageEdge]) -> Placed:
    """Place nodes in columns, each to the right of its sources, and at a similar height.

    Lines pass the columns between their ends in lanes, which take space like nodes.
    """
    before: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in edges:
        before[edge.target].append(edge.source)
    column = {node.id: 0 for node in nodes}
    for _ in nodes:  # bounded by the longest possible path, even for cyclic edges
        moved = False
        for id, sources in before.items():
            after = min(max((column[source] + 1 for source in sources), default=0), len(nodes))
            moved, column[id] = moved or after > column[id], max(column[id], after)
        if not moved:
            break
    ranks = {number: rank for rank, number in enumerate(sorted(set(column.values())))}
    rank_of = {id: ranks[number] for id, number in column.items()}
    passed = {
        (edge.source, rank): None
        for edge in edges
        for rank in range(rank_of[edge.source] + 1, rank_of[edge.target])
    }  # fmt: skip
    at: dict[str, tuple[int, int]] = {}
    lanes: dict[tuple[str, int], tuple[int, int]] = {}
    height = 0
    for rank in range(len(ranks)):

        def come_in(source: str, rank: int = rank) -> int:
            """Return the height at which lines from ``source`` leave the column before."""
            return lanes[source, rank - 1][1] if (source, rank - 1) in lanes else at[source][1] + HEIGHT // 2

        wanted: dict[tuple[str, bool], float] = {
            (id, False): _middle([come_in(source) for source in before[id] if source in at])
            for id, of in rank_of.items()
            if of == rank
        }
        wanted |= {(source, True): come_in(source) for source, of in passed if of == rank}
        x, y = MARGIN + rank * (WIDTH + COLUMN_GAP), MARGIN
        for id, is_lane in sorted(wanted, key=lambda each: wanted[each]):
            if is_lane:
                lanes[id, rank] = (x, y + LANE_HEIGHT // 2)
            else:
                at[id] = (x, y)
            y += (LANE_HEIGHT if is_lane else HEIGHT) + ROW_GAP
        height = max(height, y - ROW_GAP)
    width = len(ranks) * (WIDTH + COLUMN_GAP) - COLUMN_GAP if ranks else 0
    return Placed(at, lanes, width + 2 * MARGIN, max(height, MARGIN) + MARGIN)


def draw_lineage(
    nodes: Sequence[LineageNode], edges: Sequence[LineageEdge], focus: str, base_url: str = "", *, is_file: bool = False
) -> str:
    """Draw the graph as SVG, ``focus`` marked.

    Args:
        base_url: prefix of each link.
        is_file: include the style, for a separate file.
    """
    shown = nearest(nodes, edges, focus)
    drawn = [node for node in nodes if node.id in shown]
    lines = [edge for edge in edges if edge.source in shown and edge.target in shown]
    left = len(nodes) - len(drawn)
    return draw_graph(drawn, lines, f"Lineage of {focus}", focus, base_url, left=left, is_file=is_file)


def draw_graph(
    nodes: Sequence[LineageNode],
    edges: Sequence[LineageEdge],
    title: str,
    focus: str = "",
    base_url: str = "",
    *,
    left: int = 0,
    is_file: bool = False,
) -> str:
    """Draw all nodes as SVG, as ``draw_lineage``. ``left``: number of further nodes, which are mentioned only."""
    placed = place(nodes, edges)
    height = placed.height + (20 if left else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lineage" width="{placed.width}" height="{height}" '
        f'viewBox="0 0 {placed.width} {height}" role="group" aria-label="{_text(title)}">',
        f"<style>{STYLE}</style>" if is_file else "",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0L8,4L0,8Z"/></marker></defs>',
        *(_edge(edge, placed) for edge in edges),
        *(_node(node, placed.at[node.id], focus, base_url) for node in nodes),
        f'<text class="sub" x="{MARGIN}" y="{height - 8}">and {left} further off</text>' if left else "",
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _middle(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _edge(edge: LineageEdge, placed: Placed) -> str:
    (x, y), (end, target_y) = placed.at[edge.source], placed.at[edge.target]
    x, y = x + WIDTH, y + HEIGHT // 2
    passed = sorted(lane for (source, _), lane in placed.lanes.items() if source == edge.source and x < lane[0] < end)
    line = f"M{x},{y}"
    for left, middle in (*passed, (end, target_y + HEIGHT // 2)):
        half = (x + left) // 2
        line += f"C{half},{y} {half},{middle} {left},{middle}"
        x, y = left, middle
        if left < end:
            x += WIDTH
            line += f"H{x}"
    title = f"<title>{_text(edge.label)}</title>" if edge.label else ""
    return f'<path d="{line}" marker-end="url(#arrow)">{title}</path>'


def _node(node: LineageNode, at: tuple[int, int], focus: str, base_url: str) -> str:
    classes = [
        "job" if node.is_job else "artifact",
        *(["focus"] * (node.id == focus)),
        *(["gone"] * node.is_gone),
        node.tone,
    ]
    body = (
        f"<title>{_text(f'{node.label}, {node.sub}')}</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="{HEIGHT // 2 if node.is_job else 6}"/>'
        f'<text x="12" y="20">{_text(_short(node.label))}</text>'
        f'<text class="sub" x="12" y="36">{_text(_short(node.sub, MAX_LABEL + 3))}</text>'
    )
    group = f'<g class="{" ".join(filter(None, classes))}" transform="translate({at[0]},{at[1]})">{body}</g>'
    return group if node.is_gone or not node.path else f'<a href="{_text(base_url + node.path)}">{group}</a>'


def _short(text: str, most: int = MAX_LABEL) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> str:
    printable = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return escape(printable)
