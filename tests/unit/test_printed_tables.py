"""Columns of the tables that pages print as output are those that the commands print."""

import ast
import re
from pathlib import Path

from support import shows

pytestmark = shows("docs", "project")

TREE = Path(__file__).parents[2]
ROOTS = ("core", "runtime", "modelboxes", "platform", "zoo")
BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def columns_in(code: str) -> list[list[str | None]]:
    """Rows of upper-case titles in a module; None stands for a title that is computed."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 2:
            titles = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
            texts = [title for title in titles if isinstance(title, str)]
            if len(texts) >= len(titles) - 2 and all(text == text.upper() for text in texts) and any(texts):
                found.append([str(title) if title is not None else None for title in titles if title != ""])
    return found


def printed_columns(page: str) -> list[list[str]]:
    """Rows of at least three upper-case titles in a page's blocks."""
    lines = [line for block in BLOCK.findall(page) for line in block.splitlines()]
    rows = [re.split(r"  +", line.strip()) for line in lines]
    return [row for row in rows if len(row) > 2 and all(re.fullmatch(r"[A-Z][A-Z ]*", title) for title in row)]


def test_columns_that_pages_print_are_those_of_the_commands() -> None:
    modules = [path.read_text() for root in ROOTS for path in (TREE / root).rglob("*.py")]
    known = [row for code in modules if re.search(r'\("",|"[A-Z][A-Z ]+", "[A-Z]', code) for row in columns_in(code)]
    printed = [
        (page.name, row) for page in sorted((TREE / "docs").rglob("*.md")) for row in printed_columns(page.read_text())
    ]
    assert len(printed) > 12

    def is_known(row: list[str]) -> bool:
        # The last column of a table may be left out where it has no values.
        return any(
            len(row) in (len(each), len(each) - 1) and all(a in (b, None) for a, b in zip(each, row, strict=False))
            for each in known
        )

    assert [(page, row) for page, row in printed if not is_known(row)] == []


def test_a_table_without_a_column_of_the_command_is_found() -> None:
    assert columns_in('show(("NAME", kind, "AGE", "", "SIZE"))') == [["NAME", None, "AGE", "SIZE"]]
    assert printed_columns("```text\nNAME  KIND  AGE\na     b     3 s\n```\n") == [["NAME", "KIND", "AGE"]]
