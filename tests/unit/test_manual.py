"""The manual has every setting, every error and every word it should."""

import re
from pathlib import Path

import pytest

import rdukit
from support import shows

pytestmark = shows("errors", "faults", "permissions", "settings", "zoo", "cards", "project")

TREE = Path(__file__).parents[2]
DECISIONS = sorted((TREE / "docs/decisions").glob("*.md"))


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/README.md",
        "docs/port.md",
        *(f"docs/decisions/{p.name}" for p in DECISIONS),
    ],
)
def test_links_inside_the_tree_lead_somewhere(page: str) -> None:
    path = TREE / page
    targets = [part.split(")")[0] for part in path.read_text().split("](")[1:]]
    missing = [t for t in targets if "://" not in t and not (path.parent / t.split("#")[0]).exists()]
    assert missing == []


def test_the_manual_s_first_page_leads_to_each_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (TREE / "docs/README.md").read_text()))
    assert {page.name for page in (TREE / "docs").glob("*.md")} - {"README.md"} == named


def test_each_picture_of_the_manual_is_on_a_page_and_has_what_makes_it() -> None:
    pages = "".join(page.read_text() for page in (TREE / "docs").glob("*.md"))
    shown = set(re.findall(r"\]\(pictures/(\w+)\.png\)", pages))
    assert {picture.stem for picture in (TREE / "docs/pictures").iterdir()} == shown
    script = (TREE / "scripts/console_pictures.py").read_text().partition("SCENES")[2].partition("}")[0]
    assert set(re.findall(r'"(\w+)"', script)) == shown - {"gan"}, "gan.png is a result of docs/gan.md's command"


def test_the_pages_name_modules_that_exist() -> None:
    """`…` stands for any folders."""
    modules = [
        str(path.relative_to(TREE))
        for folder in TREE.iterdir()
        if folder.is_dir() and not folder.name.startswith(".")  # .venv has ten thousand others
        for path in folder.rglob("*.py")
    ]
    pages = [*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md")]
    named = {name: page.name for page in pages for name in re.findall(r"`([\w./…-]+\.py)`", page.read_text())
             if page.name != "CHANGELOG.md"}  # fmt: skip
    ends = {name: re.compile(rf"(^|/){re.escape(name).replace('…', '.+')}$") for name in named}
    assert {name: named[name] for name, end in ends.items() if not any(map(end.search, modules))} == {}


def test_decisions_are_numbered_in_turn_listed_and_complete() -> None:
    index = (TREE / "docs/decisions/README.md").read_text()
    records = [path for path in DECISIONS if path.name != "README.md"]
    assert [path.name[:4] for path in records] == [f"{n:04d}" for n in range(1, len(records) + 1)]
    for path in records:
        text = path.read_text()
        assert f"]({path.name})" in index and text.startswith(f"# {path.name[:4]}. ")
        if re.search(r"^Moved next to the code: the docstring of \[`[\w/]+\.py`\]\(", text, re.MULTILINE):
            continue
        for part in ("Context", "Decision", "Alternatives", "Consequence"):
            assert f"**{part}.** " in text, path.name


def test_the_newest_version_of_the_changelog_is_that_of_the_code() -> None:
    versions = re.findall(r"^## (\d\S+) \(", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == rdukit.__version__


def test_the_architecture_page_stays_short() -> None:
    assert len((TREE / "ARCHITECTURE.md").read_text().splitlines()) < 120


def test_the_readme_says_first_that_this_is_an_independent_emulation() -> None:
    first_lines = "\n".join((TREE / "README.md").read_text().splitlines()[:12])
    assert "independent emulation" in first_lines
    for command in ("make demo", "make test", "make up"):
        assert command in "\n".join((TREE / "README.md").read_text().splitlines()[:25])


def test_the_glossary_explains_each_word_once() -> None:
    rows = [line for line in (TREE / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    words = [row.split("|")[1].strip().removesuffix("†").strip() for row in rows]
    words = [word for word in words if word not in {"word", "---"}]
    assert len(words) == len(set(words))
