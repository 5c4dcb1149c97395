"""The page of a profiled program as one self-contained HTML file. Pure, except for its templates.

Names come from programs and PEFs of others. The template escapes them, pictures cannot run scripts, and the page's
policy allows only its own script, by digest.

Source: ours.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rdukit.units import format_bytes, format_count, format_seconds
from rdukit_runtime.profile.timeline import Line
from rdukit_runtime.report.advice import Advice, ProgramVerdict
from rdukit_runtime.report.facts import ProgramFacts, SectionFacts
from rdukit_runtime.report.flame import FlameBox

#: Most rows of the sections' table, and of the lines'.
MOST_SECTIONS: Final = 500
MOST_LINES: Final = 100
_MOST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class PagePicture:
    """A picture with its heading, and an alternative text."""

    heading: str
    svg: str
    words: str

    @property
    def address(self) -> str:
        """The picture as the address of an image."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the program, with its text if the file still exists."""

    line: Line
    calls: int
    nanoseconds: int
    text: str


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Contents of the page. ``missing`` lists absent parts, with the reasons."""

    title: str
    process: str
    facts: ProgramFacts
    verdict: ProgramVerdict
    #: Sentences next to the verdict, such as a rank that the others wait for.
    notes: Sequence[str]
    advice: Sequence[Advice]
    account: Sequence[tuple[str, str, int]]
    pictures: Sequence[PagePicture]
    flame: Sequence[FlameBox]
    flame_left_out: int
    lines: Sequence[SourceLine]
    environment: Sequence[tuple[str, str]]
    commands: Sequence[str]
    missing: Sequence[str]


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rdukit_runtime.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"bytes": format_bytes, "count": format_count, "ns": _format_ns, "short": _short}
    return environment


def render_page(page: ReportPage) -> str:
    """Return the page as HTML."""
    script = _resource("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = page.facts.sections
    values: Mapping[str, object] = {
        "page": page,
        "facts": page.facts,
        "sections": sections[:MOST_SECTIONS],
        "sections_left_out": max(len(sections) - MOST_SECTIONS, 0),
        "rows": max((box.depth for box in page.flame), default=0) + 1,
        "share": lambda section: _share(page.facts, section),
        "policy": policy,
        "style": Markup(_resource("report.css")),
        "script": Markup(script),
    }
    return _environment().get_template("report.html").render(values)


def _share(facts: ProgramFacts, section: SectionFacts) -> float:
    return 100.0 * section.host_ns / facts.total_ns if facts.total_ns else 0.0


def _format_ns(nanoseconds: float) -> str:
    return format_seconds(nanoseconds / 1e9)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_NAME else text[: _MOST_NAME - 1] + "…"


@lru_cache(maxsize=4)
def _resource(name: str) -> str:
    return files("rdukit_runtime.report").joinpath("templates", name).read_text()
