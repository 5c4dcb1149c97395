"""The site of the manual, in its pure parts: contents, links, references, and the command that opens a page."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import build_site
from manual import cli_pages, contents, rest_pages
from rdukit.cli import docs as command
from rdukit.cli.app import ROLES, SUMMARIES, run_command
from rdukit.cli.app import cli as root
from rdukit.errors import NotFound, all_error_classes
from rdukit_node.cli.snfadm import snfadm
from support import shows
from support.pages import code_blocks
from support.printed_commands import check_command

pytestmark = shows("docs", "start", "upgrade", "troubleshooting", "project", "grpc", "metrics")

GROUPS = contents.read_groups((contents.TREE / contents.INDEX).read_text())
SITE_ONLY = {"cli", "rest", "sdk", "client"}
ROLES_PAGES = {page for commands in ROLES.values() for page in commands.values()}


def test_every_page_is_in_one_group_of_the_contents() -> None:
    listed = [page.source for group in GROUPS for page in group.pages if page.source]
    assert len(listed) == len(set(listed))
    docs = contents.TREE / "docs"
    there = {str(path.relative_to(contents.TREE)) for path in [*docs.glob("*.md"), *docs.glob("design/*.md")]}
    assert there - {contents.INDEX} <= set(listed)
    assert {page.place for group in GROUPS for page in group.pages if not page.source} == SITE_ONLY


def test_groups_go_from_the_start_to_the_reference() -> None:
    order = ["Start", "Tutorials", "How-to guides", "Explanation", "Reference"]
    titles = [group.title.partition(":")[0] for group in GROUPS]
    assert [title for title in dict.fromkeys(titles) if title in order] == order


def test_a_heading_of_the_third_level_names_the_one_above_it() -> None:
    text = "## Guides\n### Serve\n| [a](a.md) | A |\n## Other\n| `cli` | C |\n"
    assert [(group.title, [page.place for page in group.pages]) for group in contents.read_groups(text)] == [
        ("Guides: Serve", ["a"]),
        ("Other", ["cli"]),
    ]


def test_links_change_and_code_does_not() -> None:
    text = "[`x`](a.md#b) `[c](d.md)`\n```\n[e](f.md)\n```\n![p](g.png)"
    assert contents.map_links(text, str.upper) == "[`x`](A.MD#B) `[c](d.md)`\n```\n[e](f.md)\n```\n![p](G.PNG)"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("docs/port.md", "pytorch.md#names", "pytorch.md#names"),
        ("docs/port.md", "../ARCHITECTURE.md", "ARCHITECTURE.md"),
        ("docs/decisions/README.md", "../../ARCHITECTURE.md", "../ARCHITECTURE.md"),
        ("ARCHITECTURE.md", "docs/decisions/README.md", "decisions/README.md"),
        ("CHANGELOG.md", "docs/README.md", "index.md"),
        ("docs/jobs.md", "job.schema.json", "files/docs/job.schema.json"),
        ("docs/jobs.md", "https://example.org/x.md", "https://example.org/x.md"),
        ("docs/jobs.md", "nowhere.md", "nowhere.md"),
    ],
)
def test_a_link_leads_to_the_same_page_in_the_site(source: str, target: str, expected: str) -> None:
    pages = contents.all_sources(GROUPS)
    assert build_site.site_link(target, source, pages, lambda path: f"files/{path}") == expected


def test_pages_have_links_to_a_repository_only_if_the_project_names_one() -> None:
    assert build_site.page_links("docs/port.md", "") == ""
    address = build_site.repository({"urls": {"Repository": "https://git.example/rdukit/"}})
    links = build_site.page_links("docs/port.md", address)
    assert "https://git.example/rdukit/edit/main/docs/port.md" in links
    assert "title=Error%20in%20docs/port.md" in links


def test_the_reference_of_commands_has_each_command_and_option() -> None:
    pages = cli_pages.cli_pages()
    assert {name.partition("/")[2] for name in pages if "/" in name} == set(SUMMARIES)
    assert "## rdukit webhook add" in pages["cli/webhook"] and "`--event " in pages["cli/webhook"]
    assert "```text\nrdukit webhook add https://example.org/hooks --event job.failed\n```" in pages["cli/webhook"]


def test_the_reference_of_routes_has_parameters_and_fields() -> None:
    schema = {"properties": {"box": {"type": "string", "description": "Name."}}, "required": ["box"]}
    answer = {"content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/c/Job"}}}}}
    parameter = {"name": "limit", "in": "query", "schema": {"type": "integer", "default": 50}, "description": "Rows."}
    operation = {
        "tags": ["jobs"], "summary": "Submit", "parameters": [parameter], "responses": {"201": answer, "4XX": {}},
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}}}},
    }  # fmt: skip
    document = {"paths": {"/v1/jobs": {"post": operation}}, "components": {"schemas": {"JobRequest": schema}}}
    pages = rest_pages.rest_pages(document)
    assert "| `POST /v1/jobs` | Submit |" in pages["rest"]
    for part in ("## POST /v1/jobs", "| `limit` | query | integer | `50` | Rows. |", "list of `Job`"):
        assert part in pages["rest/jobs"]
    assert "| `box` | string | required | Name. |" in pages["rest/jobs"]


def test_the_plain_text_has_pages_in_order_and_no_navigation() -> None:
    texts = {f"{page.place}.md": f"# {page.place}\n" for group in GROUPS for page in group.pages} | {
        "index.md": f"# Contents\n{build_site.navigation(GROUPS)}"
    }
    text = build_site.whole_text(GROUPS, texts, "# Python names\n")
    assert "toctree" not in text
    assert text.index("page: index.md") < text.index("page: start.md") < text.index("page: settings.md")
    assert text.endswith("# Python names\n")


def test_every_command_has_a_role_and_a_page_that_exists() -> None:
    assert sorted(name for commands in ROLES.values() for name in commands) == sorted(SUMMARIES)
    for name in {page for commands in ROLES.values() for page in commands.values()}:
        assert (contents.TREE / f"docs/{name}.md").is_file()


@pytest.mark.parametrize("words", [["webhook"], ["webhook", "add"], ["router", "train"], ["node", "list"], ["demo"]])
def test_the_help_of_a_command_ends_with_its_page(words: list[str]) -> None:
    shown = CliRunner().invoke(root, [*words, "--help"])
    found = re.fullmatch(r"Manual: rdukit docs (\S+)", shown.output.rstrip().splitlines()[-1].strip())
    assert found is not None and found[1] in ROLES_PAGES


def test_the_help_of_an_administration_tool_ends_with_its_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["snfadm", "--help"])
    with pytest.raises(SystemExit):
        run_command(snfadm)
    assert capsys.readouterr().out.rstrip().endswith("Manual: rdukit docs snfadm")


def test_help_lists_commands_by_role() -> None:
    lines = CliRunner().invoke(root, ["--help"]).output.splitlines()
    assert [line[:-1] for line in lines if line[:-1] in ROLES] == list(ROLES)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("port", ("port", "")),
        ("port.md", ("port", "")),
        ("job", ("jobs", "")),
        ("sntilestat", ("node-watch", "")),
        ("no-resources", ("errors", "no-resources")),
    ],
)
def test_a_page_is_found_by_its_name_a_command_or_an_errors_code(word: str, expected: tuple[str, str]) -> None:
    assert command.find_page(word, command.Manual().list_pages()) == expected


def test_a_mistyped_page_is_refused_with_near_ones() -> None:
    with pytest.raises(NotFound, match="Did you mean 'port'"):
        command.find_page("prot", ["port", "jobs"])


def test_docs_prints_a_page_or_its_path() -> None:
    printed = CliRunner().invoke(root, ["docs", "port", "--print"])
    assert printed.output == (contents.TREE / "docs/port.md").read_text()
    path = CliRunner().invoke(root, ["docs", "no-resources"]).output.strip()
    assert path.endswith("#no-resources") and Path(path.partition("#")[0]).is_file()


def test_a_wheel_without_a_site_says_how_to_get_the_manual(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="make site"):
        command.Manual(tmp_path / "site", tmp_path / "docs").list_pages()


def test_a_wheel_with_a_site_has_pages_and_their_text(tmp_path: Path) -> None:
    sources = tmp_path / "site/_sources"
    (sources / "cli").mkdir(parents=True)
    for name in ("index.md.txt", "cli/job.md.txt", "sdk.rst.txt"):
        (sources / name).write_text(name)
    manual = command.Manual(tmp_path / "site", tmp_path / "docs")
    assert manual.list_pages() == ["README", "cli/job", "sdk"]
    assert [manual.text_of(page).read_text() for page in manual.list_pages()] == [
        "index.md.txt", "cli/job.md.txt", "sdk.rst.txt",
    ]  # fmt: skip
    assert manual.site_of("README") == tmp_path / "site/index.html"


def test_every_error_has_an_anchor_in_the_manual() -> None:
    page = (contents.TREE / "docs/errors.md").read_text()
    codes = {code for code, error in all_error_classes().items() if error.__module__ == "rdukit.errors"}
    assert set(re.findall(r'<a id="([\w-]+)"></a>', page)) >= codes


@pytest.mark.parametrize("name", ["start", "troubleshooting", "upgrade"])
def test_these_pages_name_codes_and_commands_that_exist(name: str) -> None:
    text = (contents.TREE / f"docs/{name}.md").read_text()
    assert set(re.findall(r"\[([a-z][a-z-]+)\](?!\()", text)) <= set(all_error_classes())
    spans = re.findall(r"`(rdukit [a-z][^`]+)`", text)
    lines = [line for block in code_blocks(text, "sh") for line in block.splitlines() if line.startswith("rdukit ")]
    for command_line in [*spans, *lines]:
        check_command(command_line)
