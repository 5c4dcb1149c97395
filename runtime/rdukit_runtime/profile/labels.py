"""Names beside the dots of a picture, none on another name, dot or line. Pure; pixels, y downwards.

Source: ours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

#: Width of a character at the pictures' 11 pixels.
CHARACTER: Final = 6.7
#: Pixels from a dot's edge up to which its text needs no line.
_NEAR: Final = 9.0
_SQUARE: Final = 4.0


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Pixels; ``top`` is above ``bottom``."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Rectangle") -> bool:
        """Whether both share a pixel."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def overlaps_any(self, others: Iterable["Rectangle"]) -> bool:
        """Whether it shares a pixel with one of them."""
        return any(self.overlaps(other) for other in others)

    def is_inside(self, frame: "Rectangle") -> bool:
        """Whether it is nowhere outside ``frame``."""
        across = self.left >= frame.left and self.right <= frame.right
        return across and self.top >= frame.top and self.bottom <= frame.bottom


@dataclass(frozen=True, slots=True)
class Dot:
    """A circle and the text that belongs beside it."""

    text: str
    x: float
    y: float
    radius: float

    @property
    def box(self) -> Rectangle:
        """What a label must not cover."""
        reach = self.radius + 1.5
        return Rectangle(self.x - reach, self.y - reach, self.x + reach, self.y + reach)


@dataclass(frozen=True, slots=True)
class Label:
    """Text for a dot; ``x``, ``y`` is the beginning of its baseline."""

    dot: Dot
    x: float
    y: float

    @property
    def box(self) -> Rectangle:
        """What it covers."""
        return text_box(self.x, self.y, self.dot.text)

    @property
    def leader(self) -> tuple[float, float, float, float]:
        """From the dot's edge to the nearest point of the text: x, y, x, y."""
        box, dot = self.box, self.dot
        x, y = min(max(dot.x, box.left), box.right), min(max(dot.y, box.top), box.bottom)
        length = max(sqrt((x - dot.x) ** 2 + (y - dot.y) ** 2), dot.radius)
        part = dot.radius / length
        return dot.x + (x - dot.x) * part, dot.y + (y - dot.y) * part, x, y

    @property
    def is_far(self) -> bool:
        """Whether it takes a line to see which dot is meant."""
        x1, y1, x2, y2 = self.leader
        return sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2) > _NEAR


def place_labels(
    labelled: Sequence[Dot], dots: Sequence[Dot], taken: Sequence[Rectangle], frame: Rectangle
) -> list[Label]:
    """A label for each of ``labelled``, the nearest free place first; a dot without one stays without a name.

    Args:
        dots: all of them. taken: where nothing may be. frame: what labels stay inside of.
    """
    covered = [*taken, *(dot.box for dot in dots)]
    labels: list[Label] = []
    for dot in labelled:
        places = [Label(dot, x, y) for x, y in _places(dot)]
        free = [label for label in places if label.box.is_inside(frame) and not label.box.overlaps_any(covered)]
        lines = [*(label.box for label in labels), *(piece for label in labels for piece in _line_of(label))]
        clear = [label for label in free if _is_clear(label, [*lines, *(d.box for d in dots if d is not dot)])]
        clear = clear or [label for label in free if _is_clear(label, lines)]
        if clear:
            labels.append(clear[0])
            covered += [clear[0].box, *_line_of(clear[0])]
    return labels


def _is_clear(label: Label, covered: Sequence[Rectangle]) -> bool:
    """Whether its line, if it has one, crosses nothing."""
    return not any(piece.overlaps_any(covered) for piece in _line_of(label))


def _line_of(label: Label) -> list[Rectangle]:
    return squares_along(*label.leader) if label.is_far else []


def text_box(x: float, y: float, text: str) -> Rectangle:
    """What a line of text covers, generously; ``x``, ``y`` is the beginning of its baseline."""
    return Rectangle(x - 2, y - 10, x + len(text) * CHARACTER + 2, y + 3)


def _places(dot: Dot) -> Iterator[tuple[float, float]]:
    """Right, left, above, below; then the same farther and farther away."""
    width = len(dot.text) * CHARACTER
    for away in range(4, 130, 9):
        reach = dot.radius + away
        yield dot.x + reach, dot.y + 4
        yield dot.x - reach - width, dot.y + 4
        yield dot.x - width / 2, dot.y - reach
        yield dot.x - width / 2, dot.y + reach + 9
        for side in (reach * 0.8, -reach * 0.8 - width):
            yield dot.x + side, dot.y - reach * 0.8
            yield dot.x + side, dot.y + reach * 0.8 + 8


def squares_along(x1: float, y1: float, x2: float, y2: float) -> list[Rectangle]:
    """Small squares that cover a line."""
    count = max(ceil(max(abs(x2 - x1), abs(y2 - y1)) / _SQUARE), 1)
    points = [(x1 + (x2 - x1) * i / count, y1 + (y2 - y1) * i / count) for i in range(count + 1)]
    half = _SQUARE / 2
    return [Rectangle(x - half, y - half, x + half, y + half) for x, y in points]
