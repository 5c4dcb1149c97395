"""Code in pages of the manual, for tests that run it as its readers do."""

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"


def read_page(name: str) -> str:
    """Return the text of a page of the manual, such as ``checkpoints.md``."""
    return (DOCS / name).read_text()


def code_blocks(text: str, language: str = "python") -> list[str]:
    """Return the blocks of code of a language in Markdown, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
