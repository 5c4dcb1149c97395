"""The manual has every setting, every error and every word it should."""

import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]


def test_the_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, TREE / "scripts/docs.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_inside_the_tree_lead_somewhere(page: str) -> None:
    text = (TREE / page).read_text()
    targets = [part.split(")")[0] for part in text.split("](")[1:]]
    missing = [target for target in targets if "://" not in target and not (TREE / target.split("#")[0]).exists()]
    assert missing == []


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
