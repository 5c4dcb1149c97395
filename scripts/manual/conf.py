"""Sphinx's settings for the site. ``scripts/build_site.py`` writes the sources and calls Sphinx; see there."""

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
napoleon_custom_sections = [("Source", "params_style"), "Source"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_copy_source = True
html_show_sphinx = False
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}
