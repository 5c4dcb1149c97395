"""Running a PEF section by section, each checked on the inputs that it had: the doing part of ``rdukit debug``.

Each section reads the device's values, so a fault is reported for the section that causes it and not for later ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import Graph, Section, SymbolKind
from rdukit_runtime.application import Application
from rdukit_runtime.check.sections import TOLERANCES, SectionCheck, check_section
from rdukit_runtime.engine.program import LoadedProgram

#: Kinds of symbols in which a program may give negative infinities as a mask.
_GIVEN: Final = frozenset({SymbolKind.INPUT, SymbolKind.BUFFER})


@dataclass(frozen=True, slots=True)
class DebuggedSection:
    """A section that ran, its check, and the tensors that it made by symbol."""

    section: Section
    form: str
    check: SectionCheck
    made: Mapping[str, torch.Tensor]


def debug_graph(
    application: Application, kernels: Mapping[str, KernelGraph], graph: Graph, types: tuple[str, ...] | None,
    tolerance: float | None,
) -> Iterator[DebuggedSection]:  # fmt: skip
    """Run the sections of a graph one after the other, and check each.

    Args:
        kernels: by digest. types: section types to run; None: all.
        tolerance: difference from f64; None: the precision's, from ``TOLERANCES``.
    Raises:
        InvalidArgument: the engine computes elsewhere than on the processor.
    """
    program, pef = application.program, application.pef
    if program.device.type != "cpu":
        raise InvalidArgument(
            f"sections can be debugged only on the processor, not on {program.device}; unset RDUKIT_DEVICE"
        )
    masks = {name for name, symbol in pef.symbols.items() if symbol.kind in _GIVEN and _is_mask(program, name)}
    allowed = TOLERANCES[pef.precision] if tolerance is None else tolerance
    for number in program.choose_sections(graph, types):
        section = pef.sections[number]
        kernel = kernels[section.kernel]
        inputs = [program.device_tensor(name).clone() for name in section.inputs]
        torch.manual_seed(0)
        application.run(graph.name, (number,), pef.hyperparameters)
        made = {name: program.device_tensor(name).clone() for name in section.outputs if program.has_value(name)}
        is_native = section.kernel in application.native_digests
        check = check_section(
            kernel, (section.inputs, section.outputs), inputs, [made.get(name) for name in section.outputs],
            pef.hyperparameters, allowed, is_native=is_native, masks=masks,
        )  # fmt: skip
        masks = (masks - set(section.outputs)) | check.masks
        yield DebuggedSection(section, "native" if is_native else "portable", check, made)


def _is_mask(program: LoadedProgram, name: str) -> bool:
    """Return whether a tensor has negative infinities and is finite otherwise."""
    value = program.device_tensor(name)
    if not value.is_floating_point():
        return False
    return bool(value.isneginf().any()) and not bool((value.isnan() | value.isposinf()).any())
