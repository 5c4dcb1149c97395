"""Each command that a page of the manual prints exists, with its options; nothing is run."""

import re
from pathlib import Path

import pytest

from support import shows
from support.printed_commands import check_command, printed_commands

pytestmark = shows("docs", "project")

TREE = Path(__file__).parents[2]
PAGES = [TREE / "README.md", TREE / "CONTRIBUTING.md", *sorted((TREE / "docs").rglob("*.md"))]
COMMANDS = {page: list(printed_commands(page.read_text())) for page in PAGES}


@pytest.mark.parametrize("page", [page for page, lines in COMMANDS.items() if lines], ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    for line in COMMANDS[page]:
        check_command(line)


def test_most_pages_for_readers_print_commands() -> None:
    assert sum(map(len, COMMANDS.values())) > 300
    assert len([page for page, lines in COMMANDS.items() if lines]) > 50


def test_a_server_in_the_background_comes_with_the_word_after_which_it_answers() -> None:
    lines = [line for found in COMMANDS.values() for line in found if re.match(r"rdukit (box run|serve) .*&", line)]
    assert len(lines) > 8
    assert [line for line in lines if 'go on when it prints "serving"' not in line] == []


def test_each_variable_that_a_page_names_is_a_setting_or_read_by_compose_or_tests() -> None:
    variable = re.compile(r"\bRDUKIT_[A-Z0-9_]+\b")
    settings = re.findall(r"^\| `[^`]+` \| `(RDUKIT_\w+)` \|", (TREE / "docs/settings.md").read_text(), re.MULTILINE)
    readers = [*TREE.glob("docker-compose*.yml"), *(TREE / "tests/engine").glob("*.py")]
    readers += [TREE / "tests/integration/test_client_libraries.py"]
    known = {*settings, *(name for file in readers for name in variable.findall(file.read_text()))}
    named = {name: page.name for page in PAGES for name in variable.findall(page.read_text())}
    assert len(settings) > 150
    assert {name: page for name, page in named.items() if name not in known} == {}


def test_scripts_are_started_by_python_and_exist() -> None:
    scripts = re.compile(r"`((?:python )?(scripts/[\w/]+\.py) [^`]+)`")
    found = [each for page in PAGES for each in scripts.findall(page.read_text())]
    assert len(found) > 6
    assert [line for line, path in found if not line.startswith("python ") or not (TREE / path).is_file()] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rdukit jobs list", "there is no 'jobs'"),
        ("rdukit job submit logreg compile --wiat", "No such option"),
        ("rdukit job show job-1 job-2", "it does not take job-2"),
        ("snfadm --injekt ddr-uncorrectable", "No such option"),
        ("rdukit box call infer --input pef='out.pef", "a quotation mark is missing"),
    ],
)
def test_a_mistyped_command_is_found(line: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_command(line)


def test_commands_are_those_of_shells_without_their_synopses() -> None:
    text = """```python
rdukit none
```
```sh
rdukit job list \\
  --json > out
$ snfadm -l fault -v   # what is broken
snfadm --scenario FILE [--seed N]
snfadm -l inventory|error
```
"""
    assert list(printed_commands(text)) == ["rdukit job list --json > out", "snfadm -l fault -v   # what is broken"]
    for line in printed_commands(text):
        check_command(line)
