"""``rdukit pef``: explain PEF files. Other parts add commands through the entry-point group ``rdukit.pef.commands``."""

import json
from pathlib import Path

import click

from rdukit.cli.commands import ExtensibleGroup
from rdukit.cli.tables import print_tables
from rdukit.files.atomic import write_atomic
from rdukit.pef.chips import chip_tables, describe_chips
from rdukit.pef.diff import describe_diff, diff_pefs, diff_tables
from rdukit.pef.explain import (
    bounds_table,
    explain_reduce,
    explain_section,
    find_sections,
    reduce_table,
    section_tables,
)
from rdukit.pef.file import read_pef
from rdukit.pef.inspect import (
    cuts_table,
    describe_memory,
    describe_pef,
    header_table,
    memory_plan_tables,
    pef_tables,
    sections_table,
    symbols_table,
)
from rdukit.pef.picture import draw_pef


@click.group(cls=ExtensibleGroup, extended_by="rdukit.pef.commands")
def pef() -> None:
    """Explain PEF files.

    Example: rdukit pef show out/logreg/logreg.pef

    Example: rdukit pef show mlp.pef --sections --memory
    """


@pef.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with unrounded figures.")
@click.option("--sections", is_flag=True, help="Show only sections: decisions, resources, projected cost.")
@click.option("--symbols", is_flag=True, help="Show only symbols: kind, dtype, shape, region.")
@click.option(
    "--memory",
    is_flag=True,
    help="Show only the memory plan: tensors that exist while each section runs, and the peak.",
)
def show(file: Path, as_json: bool, sections: bool, symbols: bool, memory: bool) -> None:
    """Show what the compiler put into FILE, and why.

    Cycles and seconds are the cost model's projection for the emulated chip, not measurements.

    Example: rdukit pef show out/logreg/logreg.pef --symbols

    Example: rdukit pef show mlp.pef --sections --memory
    """
    loaded = read_pef(file)
    if as_json:
        click.echo(json.dumps(describe_pef(loaded) | {"memory": describe_memory(loaded.pef)}, indent=2, sort_keys=True))
        return
    if not (sections or symbols or memory):
        tables = [*pef_tables(loaded), *memory_plan_tables(loaded.pef)]
    else:
        tables = [header_table(loaded)]
        tables += [sections_table(loaded), cuts_table(loaded.pef)] if sections else []
        tables += [symbols_table(loaded.pef)] if symbols else []
        tables += memory_plan_tables(loaded.pef) if memory else []
    print_tables(tables)


@pef.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print all differences as one JSON object.")
@click.pass_context
def diff(context: click.Context, before: Path, after: Path, as_json: bool) -> None:
    """Show what differs between the PEFs A and B: options, inputs, sections, kernels, projected cost.

    Exit status 0: equal, 1: different; native libraries count by presence, not by bytes.

    Example: rdukit pef diff out/o1/model.pef out/o3/model.pef

    Example: rdukit pef diff base.pef new.pef --json
    """
    old, new = read_pef(before), read_pef(after)
    changes = diff_pefs(old, new)
    if as_json:
        click.echo(json.dumps(describe_diff(old, new), indent=2, sort_keys=True, default=str))
    elif changes:
        print_tables(diff_tables(changes))
    else:
        click.echo(f"{before} and {after} are equal")
    context.exit(1 if changes else 0)


@pef.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--section", help="Id or name of one section.")
@click.option("--operator", help="Show sections that contain this operator, given by its name or a part of it.")
@click.option(
    "--ranks", type=click.IntRange(1), help="World size for which the reduce is projected; default: as compiled."
)
@click.option(
    "--topology",
    help="Topology that connects the ranks, as in rdukit collective plan; default: nodes with the PEF's chip.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with unrounded figures.")
def explain(
    file: Path, section: str | None, operator: str | None, ranks: int | None, topology: str | None, as_json: bool
) -> None:
    """Explain the sections of FILE: which rule or heuristic decided, what they occupy, what bounds their time.

    Without --section and --operator, one line for each section. Times are projected for the emulated chip.

    Example: rdukit pef explain out/logreg/logreg.pef --operator linear

    Example: rdukit pef explain out/logreg/logreg.pef --ranks 8 --json
    """
    loaded = read_pef(file)
    found = find_sections(loaded.pef, section, operator)
    reduce = explain_reduce(loaded.pef, ranks, topology)
    if as_json:
        value = {"sections": [explain_section(loaded.pef, s) for s in found]} | describe_chips(loaded.pef) | reduce
        click.echo(json.dumps(value, indent=2, default=str))
        return
    if section is None and operator is None:
        print_tables([bounds_table(loaded.pef, found), *chip_tables(loaded.pef)])
    else:
        print_tables([table for s in found for table in section_tables(loaded.pef, s)])
    if reduce:
        click.echo()
        print_tables([reduce_table(reduce["reduce"])])


@pef.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the SVG goes.")
def graph(file: Path, output: Path) -> None:
    """Draw the sections and fusions of FILE as an SVG picture, for light and dark screens.

    Boxes are sections in schedule order, a column a type; lines carry the bytes that pass through device memory.

    Example: rdukit pef graph out/logreg/logreg.pef -o logreg.svg

    Example: rdukit pef graph out/gpt/gpt.pef -o gpt.svg
    """
    write_atomic(output, draw_pef(read_pef(file).pef).encode())
    click.echo(f"Picture {output} created", err=True)
