"""Compile: the box's model → a PEF."""

from collections.abc import Mapping
from pathlib import Path

from rdukit.pef import Pef, SectionType, read_pef
from rdukit_modelbox.context import Progress, VerbContext, VerbResult
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.program import Program, Shape


def run_compile(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/<box>/<box>.pef``.

    Raises:
        CompileError: the compiler refuses; the message says why.
    """
    box = context.box
    shape = Shape(
        box.model, box.sizes_with(parameters), int(parameters["batch_size"]), str(parameters["precision"])
    )  # fmt: skip
    context.progress(Progress("build", 0, 2))
    program = Program(shape)
    context.check_cancelled()
    context.progress(Progress("compile", 1, 2))
    path = program.compile(
        box.name, output, mode=str(parameters["mode"]), target=str(parameters["target"]),
        num_tiles=int(parameters["num_tiles"]),
    )  # fmt: skip
    loaded = read_pef(path)
    context.progress(Progress("compile", 2, 2))
    context.log(
        f"{len(loaded.pef.sections)} sections, {len(loaded.natives)} native kernels, {path.stat().st_size} bytes"
    )
    return VerbResult(figures_of(loaded.pef, len(loaded.natives), shape), {"pef": path})


def figures_of(pef: Pef, native_kernels: int, shape: Shape) -> dict[str, object]:
    """What compile answers about a PEF. ``projected_step_seconds`` is the cost model's, for the target chip."""
    return {
        "sections": len(pef.sections),
        "section_types": {str(kind): n for kind in SectionType if (n := sum(s.type is kind for s in pef.sections))},
        "mode": pef.mode,
        "target": pef.arch,
        "precision": pef.precision,
        "batch_size": shape.batch_size,
        "projected_step_seconds": sum(section.cost.seconds for section in pef.sections),
        "native_kernels": native_kernels,
    }
