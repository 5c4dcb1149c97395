"""Examples of docs/training-loops.md run as they stand; lines with an error's name in a comment raise that error."""

import ast
import re
from typing import Any

import pytest

from rdukit import errors
from sambaflow import samba
from support import shows
from support.pages import code_blocks, read_page

pytestmark = shows("surface", "training-loops")

PAGE = read_page("training-loops.md")
#: Title → the code of its section.
SECTIONS = {part.partition("\n")[0]: "\n".join(code_blocks(part)) for part in PAGE.split("\n## ")[1:]}
PROGRAM = "The loop"


@pytest.fixture(autouse=True)
def _portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")


def run_lines(code: str, names: dict[str, Any]) -> int:
    """Run a program statement by statement; returns how many raised the error that their comment names."""
    lines, raised = code.splitlines(), 0
    for statement in ast.parse(code).body:
        last = lines[(statement.end_lineno or 0) - 1]
        compiled = compile(ast.Module([statement], []), "docs/training-loops.md", "exec")
        if error := re.search(r"# ([A-Z]\w+)$", last):
            with pytest.raises(getattr(errors, error.group(1))):
                exec(compiled, names)  # the page's own code
            raised += 1
        else:
            exec(compiled, names)
    return raised


@pytest.mark.parametrize("title", [title for title in SECTIONS if title != PROGRAM])
def test_each_section_has_an_example_that_runs(title: str) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    run_lines(SECTIONS[PROGRAM], names)
    assert SECTIONS[title], "a section has an example"
    assert run_lines(SECTIONS[title], names) == len(re.findall(r"# [A-Z]\w+$", SECTIONS[title], re.MULTILINE))
    samba.session.reset()


def test_each_row_of_the_table_leads_to_its_section() -> None:
    rows = [row for row in PAGE.partition("\n## ")[0].splitlines() if row.startswith("| [")]
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in SECTIONS}
    assert {re.search(r"\(#(.*?)\)", row).group(1) for row in rows} == anchors - {"the-loop"}  # type: ignore[union-attr]
