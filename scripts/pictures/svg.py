"""A small SVG drawing that follows the viewer's light or dark scheme: text, lines, dots, bars, and images as PNG.

Everything is inside of the file: a page shows it by ``<img>``, where nothing runs and nothing else is loaded.

Axes: Y and X rows and columns.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WIDTH, HEIGHT = 480, 240
_STYLE: Final = (
    "svg{--g:#fff;--t:#1a2230;--q:#5d6878;--l:#dfe3e8;--a:#2f6fde;--b:#d9622b;--c:#2a9d74;color-scheme:light dark}"
    "@media(prefers-color-scheme:dark){svg{--g:#181e28;--t:#e6eaf1;--q:#97a3b6;--l:#2b3443;--a:#5b93f5;--b:#f08a4b;--c:#4fc79b}}"
    "text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:var(--t)}.q{fill:var(--q)}.s{font-size:10px}"
    ".m{font:11px ui-monospace,'DejaVu Sans Mono',monospace;white-space:pre}"
    "image{image-rendering:pixelated}.e{text-anchor:end}.k{text-anchor:middle}"
    "path,line{fill:none;stroke-width:1.6;stroke-linejoin:round}.d{stroke-dasharray:3 3}"
    ".fa{fill:var(--a)}.fb{fill:var(--b)}.fc{fill:var(--c)}.fl{fill:var(--l)}.fq{fill:var(--q)}"
    ".a{stroke:var(--a)}.b{stroke:var(--b)}.c{stroke:var(--c)}.l{stroke:var(--l);stroke-width:1}.n{stroke:var(--q)}.w{stroke:#fff}"
    ".z{stroke-width:4;stroke-linecap:round}"
)
#: Colours of images: from dark blue over grey to yellow, of which every step is lighter than the one before.
_RAMP: Final = np.array(
    [(0, 34, 78), (30, 60, 110), (70, 90, 111), (112, 113, 115), (150, 140, 117), (194, 173, 106), (254, 232, 56)]
)
#: Colours of classes: background, then as the drawing's b and a.
CLASSES: Final = np.array([(24, 30, 44), (92, 147, 245), (240, 138, 75)], np.uint8)


class Drawing:
    """Elements in the order in which they are added, each in pixels of a sheet of ``WIDTH`` by ``HEIGHT``."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        """Add words with their baseline at ``y``; style ``q`` is quiet, ``s`` small, ``e`` ends and ``k`` centres."""
        named = f' class="{style}"' if style else ""
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}"{named}>{escape(words, quote=False)}</text>')

    def code(self, x: float, y: float, words: str, style: str = "") -> None:
        """Add words of fixed width, ``LETTER`` pixels for each character, whatever the font."""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" class="m {style}" textLength="{_n(LETTER * len(words))}" '
            f'lengthAdjust="spacingAndGlyphs">{escape(words, quote=False)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "l") -> None:
        """Add a line; style ``a``, ``b`` and ``c`` are colours, ``l`` a thin grey, ``n`` a grey, ``d`` dashes."""
        self._parts.append(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{style}"/>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Add a line through points; one that is not finite leaves a gap."""
        words, is_down = [], False
        for x, y in points:
            if np.isfinite(y):
                words.append(f"{'L' if is_down else 'M'}{_n(x)} {_n(y)}")
            is_down = bool(np.isfinite(y))
        self._parts.append(f'<path d="{"".join(words)}" class="{style}"/>')

    def bar(self, x: float, y: float, width: float, height: float, style: str, opacity: float = 1.0) -> None:
        """Add a filled rectangle; style ``fa``, ``fb``, ``fc`` and ``fl`` are colours."""
        more = "" if opacity >= 1 else f' opacity="{_n(opacity, 2)}"'
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="2" class="{style}"{more}/>'
        )

    def dot(self, x: float, y: float, radius: float, style: str, opacity: float = 1.0) -> None:
        """Add a disc, or with a style of lines a ring."""
        is_ring = not style.startswith("f")
        more = ' fill="none" stroke-width="1.6"' if is_ring else ""
        more += "" if opacity >= 1 else f' opacity="{_n(opacity, 2)}"'
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{style}"{more}/>')

    def dots(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Add many discs as one line of no length with round ends."""
        words = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points)
        self._parts.append(f'<path d="{words}" class="{style} z" opacity="0.55"/>')

    def grey(
        self, x: float, y: float, side: float, values_YX: NDArray[Any], limits: tuple[float, float] | None = None
    ) -> None:
        """Add values as a square image of at most 64 levels between ``limits``, those of the values unless given."""
        low, high = limits or (float(values_YX.min()), float(values_YX.max()))
        share = ((values_YX - low) / ((high - low) or 1.0)).clip(0, 1)
        places = np.linspace(0, 1, 64)
        palette = np.stack([np.interp(places, np.linspace(0, 1, len(_RAMP)), _RAMP[:, c]) for c in range(3)], 1)
        self._image(x, y, side, (share * 63).round().astype(np.uint8), palette.round().astype(np.uint8))

    def classes(self, x: float, y: float, side: float, values_YX: NDArray[Any]) -> None:
        """Add an image of up to three classes."""
        self._image(x, y, side, values_YX.astype(np.uint8), CLASSES)

    def _image(self, x: float, y: float, side: float, values_YX: NDArray[np.uint8], palette: NDArray[np.uint8]) -> None:
        picture = Image.fromarray(np.ascontiguousarray(values_YX), "P")
        picture.putpalette(palette.tobytes())
        data = io.BytesIO()
        picture.save(data, "png", optimize=True, bits=2 if len(palette) <= 4 else 8)
        coded = base64.b64encode(data.getvalue()).decode()
        self._parts.append(
            f'<image x="{_n(x)}" y="{_n(y)}" width="{_n(side)}" height="{_n(side)}" '
            f'href="data:image/png;base64,{coded}"/>'
        )

    def render(self, title: str) -> str:
        """Return the file's text; ``title`` says what is seen to who cannot see it."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img"><title>{escape(title, quote=False)}</title><style>{_STYLE}</style>'
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="var(--g)"/>{"".join(self._parts)}</svg>\n'
        )


#: Width of a character of ``Drawing.code``.
LETTER: Final = 6.6


class Axes:
    """A plot's frame: values to pixels."""

    def __init__(
        self, drawing: Drawing, box: tuple[float, float, float, float], x: tuple[float, float], y: tuple[float, float]
    ) -> None:
        """Take the frame's left, top, width and height, and the values at its edges."""
        self.drawing, self.box, self.x, self.y = drawing, box, x, y
        left, top, width, height = box
        drawing.line(left, top + height, left + width, top + height, "l")
        drawing.line(left, top, left, top + height, "l")

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a pair of values is."""
        left, top, width, height = self.box
        return (
            left + (x - self.x[0]) / (self.x[1] - self.x[0]) * width,
            top + height - (y - self.y[0]) / (self.y[1] - self.y[0]) * height,
        )

    def ticks(self, xs: Sequence[float], ys: Sequence[float], form: str = "g") -> None:
        """Write numbers along both axes."""
        left, top, _, height = self.box
        for value in xs:
            self.drawing.text(self.place(value, 0)[0], top + height + 12, format(value + 0.0, form), "q s k")
        for value in ys:
            self.drawing.text(left - 4, self.place(self.x[0], value)[1] + 3, format(value + 0.0, form), "q s e")

    def path(self, xs: Sequence[float] | NDArray[Any], ys: Sequence[float] | NDArray[Any], style: str) -> None:
        """Draw a line through pairs of values."""
        self.drawing.path([self.place(float(x), float(y)) for x, y in zip(xs, ys, strict=True)], style)


def round_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return about ``count`` round values between two."""
    rough = (high - low) / count
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first = np.ceil(low / step) * step
    return [round(float(value), 10) + 0.0 for value in np.arange(first, high + step * 1e-6, step)]


def _n(value: float, digits: int = 1) -> str:
    """Return a number in as few characters as tell its place."""
    return f"{float(value):.{digits}f}".rstrip("0").rstrip(".") if digits else str(round(value))
