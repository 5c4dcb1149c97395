"""``rdukit debug``: find the first wrong section, operator and tensor of a PEF, and the origin of a NaN."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.cli.tables import Table, print_tables
from rdukit.errors import InvalidArgument

if TYPE_CHECKING:
    import torch

    from rdukit_runtime.application import Application
    from rdukit_runtime.check.debug import DebuggedSection

_PATH: Final = click.Path(path_type=Path)
_WRONG: Final = 1


@click.command()
@click.argument("file", type=_PATH)
@click.option("--checkpoint", type=_PATH, help="Parameters: a safetensors file, or a folder that train wrote.")
@click.option("--inputs", type=_PATH, help="Safetensors file with inputs by name; default: generated values.")
@click.option("--graph", help="Graph to run; default: the only one.")
@click.option("--sections", "types", help="Run only these section types, such as fwd,bckwd,opt.")
@click.option("--tolerance", type=click.FloatRange(0, min_open=True), help="Largest expected error against f64.")
@click.option(
    "--dump", "dumped", multiple=True, metavar="TENSOR", help="Tensor to save as it was computed; repeatable."
)
@click.option("-o", "--output", type=_PATH, default=Path("debug.safetensors"), help="File for --dump.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def debug(
    context: click.Context, /, file: Path, checkpoint: Path | None, inputs: Path | None, graph: str | None,
    types: str | None, tolerance: float | None, dumped: tuple[str, ...], output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Run the PEF FILE section by section, and name the first wrong section, operator and tensor.

    Each section is compared with its portable form and, operator by operator, with f64, on the same inputs. The exit
    status is 1 if one is wrong.

    Example: rdukit debug mlp.pef --checkpoint mlp.safetensors --inputs batch.safetensors

    Example: rdukit debug mlp.pef --dump logits --output found
    """
    from rdukit.pef.file import read_pef
    from rdukit_runtime.application import open_application
    from rdukit_runtime.check.debug import debug_graph

    kernels = read_pef(file).kernels
    wanted = None if types is None else tuple(word.strip() for word in types.split(",") if word.strip())
    kept: dict[str, torch.Tensor] = {}
    with open_application(file, "debug") as application:
        unknown = [name for name in dumped if name not in application.pef.symbols]
        if unknown:
            raise InvalidArgument(f"--dump {unknown[0]}: the PEF has no such tensor; see rdukit pef show {file}")
        _fill(application, kernels, checkpoint, inputs)
        found = []
        for each in debug_graph(application, kernels, application.program.find_graph(graph), wanted, tolerance):
            found.append(each)
            kept.update({name: tensor for name, tensor in each.made.items() if name in dumped})
    if kept:
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in kept.items()}, output)
        click.echo(f"{output} created", err=True)
    if missing := [name for name in dumped if name not in kept]:
        click.echo(f"these sections do not compute: {', '.join(missing)}", err=True)
    if as_json:
        click.echo(json.dumps([_to_dict(each) for each in found], indent=1))
    else:
        print_tables(_tables(found))
    context.exit(_WRONG if any(each.check.faults for each in found) else 0)


def _fill(application: "Application", kernels: Any, checkpoint: Path | None, inputs: Path | None) -> None:
    """Give all symbols values: random ones, then those of the checkpoint and of the input file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from rdukit_runtime.profile.run import fill_program
    from rdukit_serving.device.parameters import match_parameters, open_parameters, read_constants

    program, pef = application.program, application.pef
    fill_program(program, kernels)
    for symbol, value in read_constants(pef).items():
        program.write(symbol, value)
    if checkpoint is not None:
        with open_parameters(checkpoint) as stored:
            for name, symbol in match_parameters(pef, stored.names).items():
                program.write(symbol, stored.read(name))
    if inputs is None:
        return
    try:
        given = load_file(inputs)
    except (SafetensorError, OSError) as cause:
        raise InvalidArgument(f"{inputs} cannot be read: {cause}; expected a safetensors file") from cause
    for name, value in given.items():
        program.write(name, value)


def _to_dict(each: "DebuggedSection") -> dict[str, Any]:
    check = each.check
    return {
        "id": each.section.id,
        "section": each.section.name,
        "type": each.section.type.value,
        "form": each.form,
        "error": check.error,
        "no_reference": check.no_reference,
        "faults": [
            {"kind": f.kind.value, "operator": f.operator, "tensor": f.tensor, "why": f.why} for f in check.faults
        ],
    }


def _tables(found: "list[DebuggedSection]") -> list[Table]:
    rows = tuple(
        (
            str(each.section.id), each.section.type.value, each.section.name, each.form,
            each.check.no_reference or f"{each.check.error:.2g}",
            ", ".join(fault.kind.value for fault in each.check.faults) or "right",
        )
        for each in found
    )  # fmt: skip
    tables = [Table("", ("id", "type", "section", "kernel", "error against f64", "verdict"), rows, frozenset({"id"}))]
    first = next((each for each in found if each.check.faults), None)
    if first is None:
        return [*tables, Table("", ("", ""), (("verdict", "no section is wrong"),))]
    lines = [("first wrong section", f"{first.section.id} {first.section.name}")]
    for fault in first.check.faults:
        lines += [(fault.kind.value, f"operator {fault.operator}, tensor {fault.tensor}: {fault.why}")]
    return [*tables, Table("", ("", ""), tuple(lines))]
