"""The README and the first steps: short, with commands, targets and links that exist."""

import re
from pathlib import Path

import pytest

from support import shows
from support.pages import code_blocks, read_page
from support.printed_commands import check_command

pytestmark = shows("first-steps", "project")

TREE = Path(__file__).parents[2]
README = (TREE / "README.md").read_text()
PAGES = {"README.md": README, "docs/first-steps.md": read_page("first-steps.md")}
COMMANDS = [
    pytest.param(line.partition(" #")[0].partition(" >")[0].rstrip(" &"), id=f"{page}: {line[:40]}")
    for page, text in PAGES.items()
    for block in text.split("```")[1::2]
    for line in re.findall(r"^(rdukit .*)$", block, re.MULTILINE)
]


def test_the_readme_stays_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 60
    assert len(README.split()) <= 480


def test_the_targets_of_the_readme_exist_in_their_order() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "up", "test"]
    assert all(re.search(rf"^{target}:", (TREE / "Makefile").read_text(), re.MULTILINE) for target in targets)


def test_the_port_has_twelve_lines() -> None:
    (port,) = code_blocks(README)
    assert len(port.splitlines()) == 12
    compile(port, "README.md", "exec")


def test_pages_and_pictures_of_the_readme_exist() -> None:
    targets = re.findall(r'(?:\]\(|src="|href=")([^)"]+)', README)
    assert [target for target in targets if not (TREE / target).exists()] == []
    assert len(set(re.findall(r"\(docs/([\w-]+\.md)\)", README.partition("**Read on:**")[2]))) == 5


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    section = (
        (TREE / "benchmarks/RESULTS.md").read_text().partition("### On a processor with bf16")[2].partition("###")[0]
    )
    rows = [row.split("|")[1:-1] for row in re.findall(r"^\| \w.* ms \| .*$", README, re.MULTILINE)]
    assert len(rows) == 4
    for _, ours, peer in rows:
        assert any(
            all(re.search(rf"\b{re.escape(number)}\b", line) for number in re.findall(r"[\d.]+(?= ms)", ours + peer))
            for line in section.splitlines()
        ), (ours, peer)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_exist_with_their_options(line: str) -> None:
    check_command(line)
