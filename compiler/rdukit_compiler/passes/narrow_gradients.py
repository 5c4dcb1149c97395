"""Hand gradients that were computed in bf16 to the optimizer as they are, not widened to their f32 masters' dtype.

Widening adds nothing to a product that was rounded to bf16, and takes twice the memory from backward to the end of the
step; the update widens a piece at a time.

Source: ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, references
from rdukit_compiler.passes.differentiate import OperatorShape, SectionKernels

#: Gradients of fewer elements stay wide: there are many of them, and their memory is none.
LEAST_ELEMENTS: Final = 1 << 16

_WIDENING: Final = "aten._to_copy.default"
_VIEWS: Final = frozenset({"aten.view.default", "aten._unsafe_view.default"})


def narrow_gradients(kernels: SectionKernels, names: Iterable[str]) -> tuple[SectionKernels, frozenset[str]]:
    """The section with a backward that gives bf16 products as they are; and of which of ``names`` these are."""
    found: set[str] = set()
    for name in names:
        changed = _without_widening(kernels, kernels.gradients.index(name))
        if changed is not None:
            kernels = changed
            found.add(name)
    return kernels, frozenset(found)


def _without_widening(kernels: SectionKernels, position: int) -> SectionKernels | None:
    """The section without the last step to one gradient, if that widens a large bf16 product; else None."""
    assert kernels.backward is not None
    kernel, nodes = kernels.backward, {node.name: node for node in kernels.backward.nodes}
    made = nodes.get(kernel.outputs[position] or "")
    if made is None or made.op != _WIDENING or _uses(kernel, made.name) != 1:
        return None
    work = dict(zip((node.name for node in kernel.nodes if node.op != "getitem"), kernels.backward_work, strict=True))
    (source,) = references(made.args)
    if not _widens(work[made.name]) or source in kernel.outputs or not _is_product(source, nodes):
        return None
    outputs = (*kernel.outputs[:position], source, *kernel.outputs[position + 1 :])
    rest = tuple(node for node in kernel.nodes if node is not made)
    return replace(
        kernels,
        backward=KernelGraph(kernel.inputs, rest, outputs),
        backward_work=tuple(shape for name, shape in work.items() if name != made.name),
    )


def _widens(work: OperatorShape) -> bool:
    ((shape, narrow),), ((_, wide),) = work.inputs, work.outputs
    elements = 1
    for size in shape:
        elements *= size
    return (narrow, wide) == ("bfloat16", "float32") and elements >= LEAST_ELEMENTS


def _is_product(name: str, nodes: dict[str, KernelNode]) -> bool:
    """Whether a value is a whole matrix product, its elements in the order in which that was computed."""
    turned = 0
    node = nodes.get(name)
    while node is not None and (node.op in _VIEWS or node.op == "aten.t.default"):
        turned += node.op == "aten.t.default"
        if node.op in _VIEWS and turned % 2:
            return False
        first = node.args[0]
        node = nodes.get(first.name) if isinstance(first, Ref) else None
    return node is not None and node.op == "aten.mm.default" and turned % 2 == 0


def _uses(kernel: KernelGraph, name: str) -> int:
    """How often a value is read or put out."""
    read: Sequence[str] = [n for node in kernel.nodes for n in references([*node.args, *node.kwargs.values()])]
    return read.count(name) + kernel.outputs.count(name)
