"""The flame graph of a profiled process: lines of Python, calls, graphs, sections and kernels, added up. Pure.

Source: ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rdukit.units import format_seconds
from rdukit_runtime.profile.recording import ProcessRecording
from rdukit_runtime.profile.timeline_files import Bar, bars_of

#: Share of the width below which boxes are left out, and largest number of boxes.
_LEAST_SHARE: Final = 0.0005
_MOST_BOXES: Final = 1500


@dataclass(slots=True)
class _Node:
    name: str
    category: str
    nanoseconds: int = 0
    children: dict[str, "_Node"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlameBox:
    """A box of the graph. ``left`` and ``width`` are percentages of the whole, ``depth`` counts rows from the top."""

    name: str
    category: str
    depth: int
    left: float
    width: float
    words: str


def flame_boxes(recording: ProcessRecording) -> tuple[list[FlameBox], int]:
    """Return the boxes, outer ones before inner ones, and the number of omitted narrow ones."""
    root = _Node("all calls", "root")
    open_bars: list[tuple[Bar, _Node]] = []
    for bar in bars_of(recording):
        while open_bars and open_bars[-1][0].end_ns <= bar.begin_ns:
            open_bars.pop()
        parent = open_bars[-1][1] if open_bars else root
        node = parent.children.setdefault(bar.name, _Node(bar.name, bar.category))
        node.nanoseconds += bar.end_ns - bar.begin_ns
        open_bars.append((bar, node))
    root.nanoseconds = sum(child.nanoseconds for child in root.children.values())
    boxes = list(_boxes(root, root.nanoseconds, 0, 0.0)) if root.nanoseconds else []
    wide = [box for box in boxes if box.width >= 100 * _LEAST_SHARE]
    if len(wide) > _MOST_BOXES:
        least = sorted((box.width for box in wide), reverse=True)[_MOST_BOXES - 1]
        wide = [box for box in wide if box.width > least]
    return wide, len(boxes) - len(wide)


def _boxes(node: _Node, total_ns: int, depth: int, left: float) -> Iterator[FlameBox]:
    share = 100.0 * node.nanoseconds / total_ns
    words = f"{node.name}: {format_seconds(node.nanoseconds / 1e9)}, {share:.1f} %"
    yield FlameBox(node.name, node.category, depth, left, share, words)
    for child in sorted(node.children.values(), key=lambda each: -each.nanoseconds):
        yield from _boxes(child, total_ns, depth + 1, left)
        left += 100.0 * child.nanoseconds / total_ns
