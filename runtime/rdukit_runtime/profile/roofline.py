"""A profile as a roofline: FLOPs per byte against GFLOP/s, on logarithmic axes, under this machine's limits. Pure.

Names stand next to their dots and overlap no other name, dot or line. Coordinates are pixels, y downwards.

Source: ours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10, sqrt
from typing import Final

from rdukit.files.svg import svg_document, svg_text
from rdukit.units import format_seconds
from rdukit_runtime.profile.pef import Profile, SectionRow, group_rows

#: Width of a character at the pictures' 11 pixels.
CHARACTER: Final = 6.7
#: Pixels from a dot's edge up to which its text needs no line.
_NEAR: Final = 9.0
_SQUARE: Final = 4.0


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle in pixels; ``top`` is the smaller coordinate."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Rectangle") -> bool:
        """Return whether both share a pixel."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def overlaps_any(self, others: Iterable["Rectangle"]) -> bool:
        """Return whether it shares a pixel with any of them."""
        return any(self.overlaps(other) for other in others)

    def is_inside(self, frame: "Rectangle") -> bool:
        """Return whether it lies wholly inside ``frame``."""
        across = self.left >= frame.left and self.right <= frame.right
        return across and self.top >= frame.top and self.bottom <= frame.bottom


@dataclass(frozen=True, slots=True)
class Dot:
    """A circle and the text next to it."""

    text: str
    x: float
    y: float
    radius: float

    @property
    def box(self) -> Rectangle:
        """Rectangle that a label must not cover."""
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
        """Rectangle that it covers."""
        return text_box(self.x, self.y, self.dot.text)

    @property
    def leader(self) -> tuple[float, float, float, float]:
        """Line from the dot's edge to the nearest point of the text: x, y, x, y."""
        box, dot = self.box, self.dot
        x, y = min(max(dot.x, box.left), box.right), min(max(dot.y, box.top), box.bottom)
        length = max(sqrt((x - dot.x) ** 2 + (y - dot.y) ** 2), dot.radius)
        part = dot.radius / length
        return dot.x + (x - dot.x) * part, dot.y + (y - dot.y) * part, x, y

    @property
    def is_far(self) -> bool:
        """Return whether a line must show which dot is meant."""
        x1, y1, x2, y2 = self.leader
        return sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2) > _NEAR


def place_labels(
    labelled: Sequence[Dot], dots: Sequence[Dot], taken: Sequence[Rectangle], frame: Rectangle
) -> list[Label]:
    """Return a label for each of ``labelled``, the nearest free place first; a dot without one stays without a name.

    Args:
        dots: all dots. taken: rectangles to keep free. frame: rectangle that contains all labels.
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
    """Return whether its line, if it has one, crosses nothing."""
    return not any(piece.overlaps_any(covered) for piece in _line_of(label))


def _line_of(label: Label) -> list[Rectangle]:
    return squares_along(*label.leader) if label.is_far else []


def text_box(x: float, y: float, text: str) -> Rectangle:
    """Return a generous rectangle of a line of text; ``x``, ``y`` is the beginning of its baseline."""
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


WIDTH: Final = 960
HEIGHT: Final = 620
_LEFT: Final = 70
_RIGHT: Final = 30
_TOP: Final = 78
_BOTTOM: Final = 66
_LINE: Final = 13
#: Largest number of labelled dots; the others show their names at the pointer.
MAX_LABELS: Final = 16
_MAX_NAME: Final = 30
_MIN_RADIUS: Final = 3.5
_MAX_RADIUS: Final = 22.0
_NAMES: Final = {"fwd": "forward", "bckwd": "backward", "opt": "optimizer"}

_LIGHT: Final = """\
  text { font-size: 11px; }
  .title { font-size: 15px; font-weight: bold; }
  .grid { stroke: #d8dee4; stroke-width: 1; } .axis { stroke: #57606a; stroke-width: 1.2; }
  .roof { fill: none; stroke: #424a53; stroke-width: 1.8; } .other { stroke-dasharray: 5 4; stroke-width: 1.2; }
  .dot { stroke-width: 1.3; fill-opacity: 0.55; } .leader { stroke: #8c959f; stroke-width: 0.8; }
  .fwd { fill: #1f6feb; stroke: #1f6feb; } .bckwd { fill: #bc6a0a; stroke: #bc6a0a; }
  .opt, .gradnorm, .reduce { fill: #1a7f37; stroke: #1a7f37; }
  .label { stroke: #ffffff; stroke-width: 3px; paint-order: stroke; }
"""
_DARK: Final = """\
    .grid { stroke: #21262d; } .axis { stroke: #9198a1; } .roof { stroke: #c9d1d9; } .leader { stroke: #6e7681; }
    .fwd { fill: #58a6ff; stroke: #58a6ff; } .bckwd { fill: #e0a04d; stroke: #e0a04d; }
    .opt, .gradnorm, .reduce { fill: #56d364; stroke: #56d364; } .label { stroke: #0d1117; }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """Powers of ten from ``low`` to ``high`` over the pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> "Axis":
        """Return the axis from a little below the smallest to a little above the largest."""
        low, high = log10(min(values)), log10(max(values))
        margin = 0.04 * (high - low) + 0.05
        return cls(low - margin, high + margin, start, end)

    def ticks(self) -> list[float]:
        """Return values to write at the axis: powers of ten, and twice and five times these if the range is short."""
        steps = (1, 2, 5) if self.high - self.low < 2.6 else (1,)
        found = [step * 10.0**power for power in range(floor(self.low), ceil(self.high) + 1) for step in steps]
        return [value for value in found if self.low <= log10(value) <= self.high]

    def pixel(self, value: float) -> float:
        """Return the pixel of a value; values outside the range are drawn at the edge."""
        power = min(max(log10(value), self.low), self.high) if value > 0 else self.low
        return self.start + (power - self.low) / (self.high - self.low) * (self.end - self.start)


def draw_roofline(profile: Profile) -> str:
    """Return the picture as a complete SVG document."""
    rows = group_rows(profile.rows)
    drawn = sorted((row for row in rows if row.gflop_s and row.intensity), key=lambda row: -row.measured_s)
    horizontal, vertical = axes(profile, drawn)
    dots = [_dot(profile, row, horizontal, vertical) for row in drawn]
    frame = Rectangle(_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM)
    roofs = [*_gemm_names(profile, vertical), _memory_name(profile, horizontal, vertical, dots)]
    taken = [text_box(x, y, text) for x, y, text in roofs]
    for segment in _segments(profile, horizontal, vertical):
        taken += squares_along(*segment)
    labels = place_labels(dots[:MAX_LABELS], dots, taken, frame)
    still = [row for row in rows if not row.flops and row.measured_s]
    foot = _foot(profile, still)
    height = HEIGHT + _LINE * max(len(foot) - 1, 0)
    parts = [
        *_head(profile), *_grid(horizontal, vertical), *_roofs(profile, horizontal, vertical),
        *(svg_text(x, y, "dim label", text) for x, y, text in roofs),
        *(_circle(profile, row, dot) for row, dot in zip(drawn, dots, strict=True)),
        *(_leader(label) for label in labels if label.is_far),
        *(svg_text(label.x, label.y, "label", label.dot.text) for label in labels),
        *(svg_text(_LEFT, HEIGHT - 14 + _LINE * index, "dim", text) for index, text in enumerate(foot)),
    ]  # fmt: skip
    return svg_document(parts, WIDTH, height, f"Roofline of {profile.pef}", _LIGHT, _DARK)


def axes(profile: Profile, rows: Sequence[SectionRow]) -> tuple[Axis, Axis]:
    """Return FLOPs per byte and GFLOP/s in ranges that contain every dot, and the highest roof with its begin."""
    peaks = [profile.limits.gemm[dtype] for dtype in _dtypes(profile)]
    ridge = max(peaks) / profile.limits.memory_gb_s
    x = [row.intensity * 2.5 for row in rows] + [row.intensity for row in rows] + [ridge * 4, ridge / 10]
    y = [row.gflop_s for row in rows] + [max(peaks) * 1.6, max(peaks) / 20]
    return Axis.around(x, _LEFT, WIDTH - _RIGHT), Axis.around(y, HEIGHT - _BOTTOM, _TOP)


def _dot(profile: Profile, row: SectionRow, horizontal: Axis, vertical: Axis) -> Dot:
    radius = max(_MAX_RADIUS * sqrt(profile.share(row)), _MIN_RADIUS)
    text = f"{_short(row.name)} {100 * profile.share(row):.0f} %"
    return Dot(text, horizontal.pixel(row.intensity), vertical.pixel(row.gflop_s), radius)


def _dtypes(profile: Profile) -> list[str]:
    """Return the roofs for this PEF's sections; f32 if it has none."""
    used = {row.dtype for row in profile.rows if row.flops}
    return [dtype for dtype, speed in profile.limits.gemm.items() if speed and dtype in used] or ["f32"]


def _head(profile: Profile) -> list[str]:
    limits = profile.limits
    machine = f"{limits.processor}, {limits.threads} thread{'s' * (limits.threads != 1)}"
    about = f"measured on {machine}, median of {profile.runs} runs; FLOPs and bytes by the cost model"
    parts = [
        svg_text(_LEFT, 24, "title", f"{profile.pef} · {profile.mode} · {profile.precision}"),
        svg_text(_LEFT, 42, "dim", about),
    ]
    x = float(_LEFT)
    present = dict.fromkeys(row.first.type.value for row in profile.rows)
    for kind in present:
        name = _NAMES.get(kind, kind)
        parts.append(f'<circle class="dot {kind}" cx="{x + 5:.1f}" cy="58" r="5"/>')
        parts.append(svg_text(x + 15, 62, "", name))
        x += 35 + len(name) * CHARACTER
    parts.append(svg_text(x, 62, "dim", "area: part of the host time (% of a step)"))
    return parts


def _grid(horizontal: Axis, vertical: Axis) -> Iterator[str]:
    for value in horizontal.ticks():
        x = horizontal.pixel(value)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}"/>'
        yield f'<text class="dim" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}">{_number(value)}</text>'
    for value in vertical.ticks():
        y = vertical.pixel(value)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        yield f'<text class="dim" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{_number(value)}</text>'
    yield f'<path class="axis" fill="none" d="M{_LEFT} {_TOP} V{HEIGHT - _BOTTOM} H{WIDTH - _RIGHT}"/>'
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    yield f'<text text-anchor="middle" x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 32}">FLOPs per byte</text>'
    centre = (_TOP + HEIGHT - _BOTTOM) / 2
    yield f'<text text-anchor="middle" transform="translate(18 {centre:.1f}) rotate(-90)">GFLOP/s (measured)</text>'


def _roofs(profile: Profile, horizontal: Axis, vertical: Axis) -> Iterator[str]:
    slope, *flat = _segments(profile, horizontal, vertical)
    yield _roof(slope, "roof")
    highest = min(y for _, y, _, _ in flat)
    for segment in flat:
        yield _roof(segment, "roof" if segment[1] == highest else "roof other")


def _roof(segment: tuple[float, float, float, float], style: str) -> str:
    x1, y1, x2, y2 = segment
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _segments(profile: Profile, horizontal: Axis, vertical: Axis) -> list[tuple[float, float, float, float]]:
    """Return lines in pixels: memory's slope first, then a roof per dtype from the slope on."""
    bandwidth = profile.limits.memory_gb_s
    peaks = [profile.limits.gemm[dtype] for dtype in _dtypes(profile)]
    low, ridge = _slope_begin(bandwidth, horizontal, vertical), max(peaks) / bandwidth
    slope = (
        horizontal.pixel(low), vertical.pixel(low * bandwidth), horizontal.pixel(ridge), vertical.pixel(max(peaks)),
    )  # fmt: skip
    return [
        slope,
        *(
            (horizontal.pixel(p / bandwidth), vertical.pixel(p), float(WIDTH - _RIGHT), vertical.pixel(p))
            for p in peaks
        ),
    ]


def _slope_begin(bandwidth: float, horizontal: Axis, vertical: Axis) -> float:
    """Return FLOPs per byte at which memory's slope enters the picture."""
    return float(max(10.0**horizontal.low, 10.0**vertical.low / bandwidth))


def _gemm_names(profile: Profile, vertical: Axis) -> Iterator[tuple[float, float, str]]:
    """Return (x, y, text) of the roofs' names, without overlaps."""
    taken: list[Rectangle] = []
    for dtype in sorted(_dtypes(profile), key=lambda name: -profile.limits.gemm[name]):
        speed = profile.limits.gemm[dtype]
        text = f"GEMM {dtype} {speed:.3g} GFLOP/s"
        x, y = WIDTH - _RIGHT - len(text) * CHARACTER - 4, vertical.pixel(speed) - 6
        while any(text_box(x, y, text).overlaps(other) for other in taken):
            y += 20
        taken.append(text_box(x, y, text))
        yield x, y, text


def _memory_name(profile: Profile, horizontal: Axis, vertical: Axis, dots: Sequence[Dot]) -> tuple[float, float, str]:
    """Return (x, y, text) of the slope's name: below or above the slope, near its beginning, away from dots."""
    bandwidth = profile.limits.memory_gb_s
    text = f"memory {bandwidth:.3g} GB/s"
    low = _slope_begin(bandwidth, horizontal, vertical)
    places = []
    for step in range(1, 12):
        value = low * 1.3**step
        x, y = horizontal.pixel(value), vertical.pixel(value * bandwidth)
        places.append((x + 16, y + 12))
        places.append((x - len(text) * CHARACTER - 12, y - 6))
    inside = [(x, y) for x, y in places if x > _LEFT + 4]
    free = [(x, y) for x, y in inside if not text_box(x, y, text).overlaps_any(dot.box for dot in dots)]
    return (*(free or inside)[0], text)


def _circle(profile: Profile, row: SectionRow, dot: Dot) -> str:
    title = (
        f"{row.name} ({row.first.type.value}, {row.form}, {row.dtype}): {format_seconds(row.measured_s)}, "
        f"{100 * profile.share(row):.1f} % of the step, {row.gflop_s:.3g} GFLOP/s, {row.gb_s:.3g} GB/s, "
        f"{100 * row.limit_share:.0f} % of its limit ({row.bound.value})"
    )
    return (
        f'<circle class="dot {row.first.type.value}" cx="{dot.x:.1f}" cy="{dot.y:.1f}" r="{dot.radius:.1f}">'
        f"<title>{escape(title)}</title></circle>"
    )


def _leader(label: Label) -> str:
    x1, y1, x2, y2 = label.leader
    return f'<line class="leader" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _foot(profile: Profile, still: Sequence[SectionRow]) -> list[str]:
    """Return lines that name the sections without FLOPs."""
    if not still:
        return []
    names = [f"{_short(row.name)} {100 * profile.share(row):.0f} %" for row in still]
    lines = ["without FLOPs: "]
    for index, name in enumerate(names):
        piece = name + (", " if index < len(names) - 1 else "")
        if (len(lines[-1]) + len(piece)) * CHARACTER > WIDTH - _LEFT - _RIGHT:
            lines.append("  ")
        lines[-1] += piece
    return lines


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[:12]}…{name[-(_MAX_NAME - 13) :]}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.6f}".rstrip("0")
