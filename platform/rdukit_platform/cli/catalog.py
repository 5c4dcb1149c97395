"""``rdukit catalog``: search and compare everything that jobs can begin with."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice, ExtensibleGroup
from rdukit_platform.catalog.comparison import MAX_COMPARED
from rdukit_platform.catalog.entries import EntryKind, EntrySort
from rdukit_platform.cli import connect, show

KINDS = tuple(str(kind) for kind in EntryKind)
SORTS = tuple(str(sort) for sort in EntrySort)


@click.group(cls=ExtensibleGroup)
def catalog() -> None:
    """Search and compare boxes, models, experts, checkpoints, PEFs and data sets.

    Example: rdukit catalog search digits --task classification

    Example: rdukit catalog search --task segmentation --sort newest
    """


@catalog.command()
@click.argument("words", nargs=-1)
@click.option("--kind", "kinds", type=Choice(KINDS), multiple=True, help="Show only this kind; repeat for more.")
@click.option("--task", "tasks", multiple=True, help="Show only this task, such as segmentation; repeat for more.")
@click.option(
    "--family", "families", multiple=True, help="Show only entries of this zoo model, such as gpt2; repeat for more."
)
@click.option(
    "--modality", "modalities", multiple=True, help="Show only this kind of input, such as text; repeat for more."
)
@click.option("--licence", "licences", multiple=True, help="Show only this licence; repeat for more.")
@click.option("--deprecated", is_flag=True, help="Deprecated ones, too.")
@click.option("--sort", type=Choice(SORTS), default=None, help="Order. Default: the best matches first.")
@click.option("--metric", default=None, help="Sort by this metric, the best first.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
def search(
    words: Sequence[str],
    kinds: Sequence[str],
    tasks: Sequence[str],
    families: Sequence[str],
    modalities: Sequence[str],
    licences: Sequence[str],
    deprecated: bool,
    sort: str | None,
    metric: str | None,
    reverse: bool,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List entries with all WORDS in name, description, task or licence. Without WORDS: all entries.

    Example: rdukit catalog search crystal --kind box --json

    Example: rdukit catalog search --task segmentation --sort newest
    """
    with connect() as client:
        page = client.get(
            "/v1/entries", search=" ".join(words) or None, kind=list(kinds), task=list(tasks), family=list(families),
            modality=list(modalities), licence=list(licences), deprecated="true" if deprecated else None,
            sort=sort or ("metric" if metric else None), metric=metric, reverse="true" if reverse else None,
            limit=limit, cursor=cursor,
        )  # fmt: skip
    if as_json:
        show.print_json(page)
        return
    show.print_table(
        ("NAME", "KIND", "TASK", "PARAMETERS", "FIGURES", "LICENCE", "TITLE"),
        [_row(entry, metric) for entry in page["entries"]],
    )
    shown, more = len(page["entries"]), page["next_cursor"]
    click.echo(f"{shown} of {page['total']}" + (f"; more with: --cursor {more}" if more else ""), err=True)


@catalog.command("show")
@click.argument("entry", metavar="ENTRY")
@JSON_OPTION
@TOKEN_OPTION
def show_(entry: str, as_json: bool) -> None:
    """Show everything that the catalog has on an entry: description, sizes, figures, recipes.

    ENTRY is a name, as search prints it, or KIND/NAME if two kinds share the name.

    Example: rdukit catalog show gpt2

    Example: rdukit catalog show digits:2 --json
    """
    with connect() as client:
        found = client.get("/v1/entries/show", entry=entry)
    if as_json:
        show.print_json(found)
    else:
        show.print_fields(entry_lines(found))


@catalog.command()
@click.argument("entries", metavar="A B [C [D]]", nargs=-1, required=True)
@JSON_OPTION
@TOKEN_OPTION
def compare(entries: Sequence[str], as_json: bool) -> None:
    """Compare two to four entries: descriptions, sizes, figures, recipes. A star marks the best figure of a line.

    Each is a name, as search prints it, or KIND/NAME if two kinds share the name.

    Example: rdukit catalog compare gpt2 llama/llama-3-8b digits:2

    Example: rdukit catalog compare vit lenet --json
    """
    from rdukit_platform.catalog.figures import figure_text

    with connect() as client:
        found = client.get("/v1/entries/compare", entry=list(entries)[: MAX_COMPARED + 1])
    if as_json:
        show.print_json(found)
        return
    group = ""
    rows: list[tuple[str, ...]] = []
    for line in found["lines"]:
        if line["group"] != group:
            group = line["group"]
            rows.append((f"[{group}]", *("" for _ in found["entries"])))
        cells = [
            ("-" if value is None or value == "" else figure_text(line["name"], value)) + " *" * (at in line["best"])
            for at, value in enumerate(line["values"])
        ]
        rows.append((line["name"], *cells))
    show.print_table(("", *(entry["name"] for entry in found["entries"])), rows)


def entry_lines(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that describe an entry, as name and text (pure)."""
    from rdukit.units import format_bytes
    from rdukit_platform.catalog.figures import figure_text, figure_words

    said = ("kind", "title", "description", "task", "family", "modality", "licence", "source", "box", "job",
            "deprecated")  # fmt: skip
    lines = [("entry", str(entry["name"]))]
    lines += [(name, str(entry[name])) for name in said if entry[name] not in (None, "")]
    if entry["parameters"] is not None:
        lines.append(("parameters", f"{entry['parameters']:,}"))
    lines += [(f"size {name}", f"{count:,} parameters") for name, count in entry["sizes"].items()]
    if entry["bytes"] is not None:
        lines.append(("size", format_bytes(entry["bytes"])))
    if entry["created_at"] is not None:
        lines.append(("made", show.ago(entry["created_at"])))
    lines += [(name, figure_text(name, value)) for name, value in entry["metrics"].items()]
    lines += [
        (f"recipe {kind}", ", ".join(figure_words(name, value) for name, value in reached.items()))
        for kind, reached in entry["recipes"].items()
    ]
    lines += [
        (f"{chip} step", f"{figure_text('step_seconds', seconds)}, projected")
        for chip, seconds in entry["projected"].items()
    ]
    return lines


def _row(entry: Mapping[str, Any], metric: str | None) -> tuple[str, ...]:
    from rdukit.units import format_count
    from rdukit_platform.catalog.figures import figure_words, headline

    figures = entry["metrics"]
    names = [metric] if metric and metric in figures else headline(figures, 2)
    text = ", ".join(figure_words(name, figures[name]) for name in names)
    count = entry["parameters"]
    mark = f"deprecated: {entry['deprecated']}" if entry["deprecated"] is not None else entry["title"]
    return (
        entry["name"], entry["kind"], entry["task"] or "-", "-" if count is None else format_count(count), text or "-",
        entry["licence"] or "-", mark,
    )  # fmt: skip
