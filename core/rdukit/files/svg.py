"""Pictures as SVG documents: one look for all, on light and dark pages."""

from collections.abc import Iterable
from html import escape
from typing import Final

#: CSS of all pictures: background, texts, and classes ``title``, ``name``, ``dim``, ``right``, ``middle``, ``grid``.
_LIGHT: Final = """
  svg { color-scheme: light dark; background: #ffffff; }
  text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24; }
  .title { font-size: 16px; font-weight: bold; } .name { font-weight: bold; } .dim { fill: #57606a; }
  .right { text-anchor: end; } .middle { text-anchor: middle; } .grid { stroke: #d0d7de; }
"""
_DARK: Final = """\
    svg { background: #0d1117; } text { fill: #e6edf3; } .dim { fill: #9198a1; } .grid { stroke: #30363d; }
"""


def svg_document(
    parts: Iterable[str], width: float, height: float, title: str, light: str, dark: str, defs: str = ""
) -> str:
    """Return a complete document.

    Args:
        title: description for readers who do not see the picture. light, dark: additional CSS rules.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">\n'
        f"<style>{_LIGHT}{light}  @media (prefers-color-scheme: dark) {{\n{_DARK}{dark}  }}\n</style>\n"
        f"{defs}" + "".join(f"{part}\n" for part in parts) + "</svg>\n"
    )


def svg_text(x: float, y: float, style: str, text: str) -> str:
    """Return a text at (x, y) in pixels: its left end, or the anchor of its classes."""
    return f'<text x="{x:.6g}" y="{y:.6g}" class="{style}">{escape(text)}</text>'
