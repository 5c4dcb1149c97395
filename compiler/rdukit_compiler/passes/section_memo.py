"""Differentiate equal sections once: a memo of section kernels by structure, which may have a store behind it.

Two sections are equal when they make the same calls on values of the same kinds, dtypes and shapes, in the same
places, whatever the values are called. Layers of a transformer are equal, so a deep model costs little more than a
shallow one. The kernels of a repeated section are those of the first; only the names that they are bound to change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rdukit.pef.kernel import rename_references
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.passes.assign_precision import Precision
from rdukit_compiler.passes.choose_host_operators import runs_on_host
from rdukit_compiler.passes.differentiate import (
    SectionKernels,
    build_kernels,
    is_overwritten,
    section_inputs,
    section_outputs,
    updated_positions,
)
from rdukit_compiler.passes.section_store import SectionStore
from rdukit_compiler.refusals import refusing


class SectionMemo:
    """Builds sections' kernels; each structure is traced once, or never if the store has it from an earlier compile.

    Good for one compile, over all its graphs.
    """

    def __init__(self, store: SectionStore | None = None) -> None:
        self._store = store
        #: Called after each section.
        self.on_built: Callable[[], None] = lambda: None
        #: Called before the first structure of this compile is traced that no earlier one left in the store.
        self.on_new: Callable[[], None] = lambda: None
        #: Structure → kernels as bound to the first section that has it.
        self._known: dict[str, SectionKernels] = {}
        #: The graph last asked about, and who reads its values: found once a graph, not once a section.
        self._graph: ModelGraph | None = None
        self._readers: Mapping[str, Sequence[Operator]] = {}

    def __len__(self) -> int:
        """Number of different structures so far."""
        return len(self._known)

    def build(
        self, graph: ModelGraph, operators: Sequence[Operator], precision: Precision, contributions: Mapping[str, int]
    ) -> SectionKernels:
        """What ``build_kernels`` gives for the same arguments.

        Raises:
            CompileError: torch refuses one of the operators, or its gradient.
        """
        if graph is not self._graph:
            self._graph, self._readers = graph, graph.consumers()
        inputs = section_inputs(graph, operators)
        outputs = section_outputs(graph, operators, self._readers)
        structure = describe_structure(graph, operators, inputs, outputs, precision, contributions)
        known = self._known.get(structure)
        # What an operator of the program's own does may change from one compile to the next.
        store = None if any(runs_on_host(operator) for operator in operators) else self._store
        if known is None and store is not None:
            known = store.find(structure)
        if known is None:
            self.on_new()
            self.on_new = lambda: None

            def compile_alone(operator: Operator) -> object:
                flowing = {name: 1 for name in operator.outputs if graph.values[name].requires_grad}
                return build_kernels(graph, [operator], precision, flowing, self._readers)

            with refusing(operators, compile_alone):
                known = build_kernels(graph, operators, precision, contributions, self._readers)
            if store is not None:
                store.keep(structure, known)
        self._known[structure] = known
        self.on_built()
        return rebind(known, inputs, outputs)


def describe_structure(
    graph: ModelGraph, operators: Sequence[Operator], inputs: Sequence[str], outputs: Sequence[str],
    precision: Precision, contributions: Mapping[str, int],
) -> str:  # fmt: skip
    """Everything that a section's kernels depend on, as text in which values are called by position.

    That is: precision; kind, dtype, shape, differentiability and exactness of each input, and whether it is
    overwritten; each call with its literal arguments (``1``, ``1.0`` and ``True`` differ); which values leave, their
    dtype and shape, how many gradients flow in, and
    which of them are the new values of which inputs.
    """
    names: dict[str, str] = {}
    lines = [f"{precision.name} {precision.training}"]
    for name in inputs:
        value = graph.values[name]
        names[name] = f"i{len(names)}"
        changes = is_overwritten(graph, name, precision)
        held = f"{value.kind} {value.dtype} {value.shape} {value.requires_grad} {value.is_exact}"
        lines.append(f"{held} {changes}")
    for operator in operators:
        args = [rename_references(argument, names) for argument in operator.args]
        kwargs = [(key, rename_references(argument, names)) for key, argument in sorted(operator.kwargs.items())]
        for name in operator.outputs:
            names[name] = f"v{len(names)}"
        lines.append(f"{operator.op} {args!r} {kwargs!r} {len(operator.outputs)} {operator.compute}")
    for name in outputs:
        value = graph.values[name]
        lines.append(
            f"{names[name]} {value.dtype} {value.shape} {value.requires_grad} {contributions.get(name, 0)}"
        )  # fmt: skip
    if updated := updated_positions(graph, inputs, outputs):
        lines.append(f"updates {sorted(updated.items())}")
    return "\n".join(lines)


def rebind(kernels: SectionKernels, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> SectionKernels:
    """The same kernels bound to another section's values, which stand in the same places."""
    before, after = (*kernels.inputs, *kernels.outputs), (*inputs, *outputs)
    if before == after:
        return kernels
    name_of = dict(zip(before, after, strict=True))
    return replace(
        kernels,
        inputs=inputs,
        outputs=outputs,
        saved=tuple(s if s.value is None else replace(s, value=name_of[s.value]) for s in kernels.saved),
        tangents=tuple(name_of[name] for name in kernels.tangents),
        gradients=tuple(name_of[name] for name in kernels.gradients),
    )
