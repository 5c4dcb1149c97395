"""Sphinx's settings for the site. ``scripts/build_site.py`` writes the sources and calls Sphinx; see there."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rdukit import __version__

project = "rdukit"
author = "the rdukit authors"
copyright = "the rdukit authors. rdukit is independent of SambaNova Systems"
version = release = __version__
html_title = f"rdukit {__version__}"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["files/**"]
myst_heading_anchors = 6
smartquotes = False
highlight_language = "text"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
napoleon_custom_sections = ["Source"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_copy_source = True
html_show_sphinx = False
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}

#: What Sphinx and Furo leave out for those who read with a keyboard or a screen reader, as axe names it.
REPAIRS = (
    (r"<pre>", '<pre tabindex="0">'),  # wide code scrolls
    (r'<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),  # and wide tables
    (r'role="heading">', 'role="heading" aria-level="2">'),
    # A long signature is a list of definitions without terms.
    (r"<dl>(\n(?:<dd><em class=\"sig-param\">.*</dd>\n)+)</dl>", r"<div>\1</div>"),
    (r"<dd>(<em class=\"sig-param\">.*)</dd>", r'<div style="margin-left: 2rem">\1</div>'),
)


def repair_page(app: object, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Repair the HTML of a page and of its navigation."""
    for part in ("body", "furo_navigation_tree"):
        for pattern, instead in REPAIRS:
            context[part] = re.sub(pattern, instead, context.get(part, ""))


def setup(app: Any) -> None:
    """Connect with Sphinx, after Furo, which makes the navigation."""
    app.connect("html-page-context", repair_page, priority=900)
