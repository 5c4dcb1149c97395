"""``rdukit zoo plan``: a published size compiled without its parameters' values."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from rdukit.cli.tables import Table, print_tables
from rdukit.errors import InvalidArgument
from rdukit.hardware import CHIPS
from rdukit.pef import Pef, read_pef
from rdukit.pef.memory import lease_bytes
from rdukit.units import format_bytes, format_count, format_seconds
from rdukit_zoo.planning.placement import Stage, place_over_rdus
from rdukit_zoo.registry import ModelEntry, SizeValue, get_model

TRAIN, INFER = "train", "infer"


@click.command("plan")
@click.argument("name", metavar="MODEL")
@click.option("--variant", help="Published sizes by name; `rdukit zoo show MODEL` lists them. Default: the small ones.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=VALUE", help="Another size, such as context_length=4096.")
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Samples a step.")
@click.option(
    "--purpose", type=click.Choice([TRAIN, INFER]), default=INFER, show_default=True, help="Whether to plan for AdamW."
)
@click.option("--mode", type=click.Choice(["o0", "o1", "o3"]), default="o1", show_default=True, help="Of the compiler.")
@click.option("--target", type=click.Choice(sorted(CHIPS)), default="sn30", show_default=True, help="Chip generation.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out"), help="Folder of the PEF.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def plan_model(
    name: str, variant: str | None, sizes: tuple[str, ...], batch_size: int, purpose: str, mode: str, target: str,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Compile a model of any size as if: no parameter has a value, so that hundreds of gigabytes fit anywhere.

    Prints memory, RDUs and the cost model's projections, which are emulated. The PEF shows all sections
    (`rdukit pef show`), and runs only where its memory is.

    Example: rdukit zoo plan llama --variant llama-2-70b --size context_length=4096

    Example: rdukit zoo plan gpt2 --batch-size 8
    """
    entry = get_model(name)
    known = entry.check_sizes({**(entry.sizes_of(variant) if variant else {}), **_read_sizes(entry, sizes)})
    path = compile_plan(entry, known, batch_size, purpose, mode, target, out)
    pef = read_pef(path).pef
    stages = place_over_rdus(pef, pef.main_graphs()[0], CHIPS[target])
    found = summary_of(pef, stages) | {"pef": str(path)}
    if as_json:
        click.echo(json.dumps(found | {"stages": [asdict(stage) for stage in stages]}, sort_keys=True))
        return
    print_tables([Table("Plan (emulated figures)", ("", ""), _rows(found)), _stages_table(stages)])


def compile_plan(
    entry: ModelEntry, sizes: dict[str, SizeValue], batch_size: int, purpose: str, mode: str, target: str, out: Path
) -> Path:
    """Compile a model whose parameters are on torch's meta device and return the PEF's path.

    Raises:
        CompileError: the compiler refuses.
    """
    import torch

    from sambaflow import samba
    from sambaflow.sessions.compiling import SILENT

    samba.session.reset()
    with torch.device("meta"):
        model = entry.build(**sizes)
    samba.from_torch_model_(model.train(purpose == TRAIN))
    inputs = entry.make_inputs(batch_size, **sizes)
    optimizer = samba.optim.AdamW(model.parameters(), lr=1e-4) if purpose == TRAIN else None
    options = {
        "output_folder": str(out), "pef_name": f"{entry.name}_plan", "optim_level": mode, "arch": target,
        "log_level": SILENT, "kernels": "portable", "is_plan": True,
    }  # fmt: skip
    name = entry.name.replace("-", "_")
    return Path(
        samba.session.compile(model, inputs, optimizer, name=name, inference=purpose == INFER, config_dict=options)
    )


def summary_of(pef: Pef, stages: tuple[Stage, ...]) -> dict[str, object]:
    """Return a plan's figures: counts, bytes, and seconds of the cost model's projection."""
    graph = pef.main_graphs()[0]
    step = [pef.sections[number].cost for number in graph.schedule]
    return {
        "target": pef.arch, "mode": pef.mode, "precision": pef.precision, "sections": len(graph.schedule),
        "kernels": len({pef.sections[number].kernel for number in graph.schedule}),
        "parameter_bytes": sum(stage.parameter_bytes for stage in stages), "memory_bytes": lease_bytes(pef),
        "rdus": len(stages), "step_flops": sum(cost.flops for cost in step),
        "projected_step_seconds": sum(cost.seconds for cost in step),
    }  # fmt: skip


def _rows(found: dict[str, object]) -> tuple[tuple[str, str], ...]:
    shown = dict(found)
    for key in ("parameter_bytes", "memory_bytes"):
        shown[key.replace("_bytes", "")] = format_bytes(int(str(shown.pop(key))))
    shown["step flops"] = format_count(float(str(shown.pop("step_flops"))))
    shown["projected step"] = format_seconds(float(str(shown.pop("projected_step_seconds"))))
    shown["pef"] = shown.pop("pef")
    return tuple((key, str(value)) for key, value in shown.items())


def _stages_table(stages: tuple[Stage, ...]) -> Table:
    rows = tuple(
        (
            str(stage.rdu), stage.first, stage.last, str(stage.sections), format_bytes(stage.parameter_bytes),
            format_bytes(stage.memory_bytes), format_seconds(stage.forward_s),
        )
        for stage in stages
    )  # fmt: skip
    return Table(
        "Placement by memory",
        ("RDU", "FIRST SECTION", "LAST SECTION", "SECTIONS", "PARAMETERS", "MEMORY", "FORWARD"),
        rows,
    )


def _read_sizes(entry: ModelEntry, given: tuple[str, ...]) -> dict[str, SizeValue]:
    """Return ``NAME=VALUE`` as sizes, each of the type of its default.

    Raises:
        InvalidArgument: no such size, or no such value.
    """
    found: dict[str, SizeValue] = {}
    for text in given:
        key, _, value = text.partition("=")
        entry.check_sizes({key: value})
        default = entry.sizes[key]
        try:
            found[key] = value.lower() == "true" if isinstance(default, bool) else type(default)(value)
        except ValueError as cause:
            raise InvalidArgument(f"{key} is {value!r}; expected a value such as {default!r}") from cause
    return found
