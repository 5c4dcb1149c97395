"""Changes the gradients that a section returns: they are added to the sum so far, or passed to the optimizer in bf16.

A weight that several sections read, such as an embedding tied to the output layer, gets a gradient from each. Separate
gradients would take the memory of several weights until the optimizer runs, and another pass to add them up. A backward
that adds to the sum needs no tensor of its own; the backward of a lookup writes only its rows.

Widening a gradient to its f32 master's dtype does not improve a product that was rounded to bf16, and doubles its
memory until the end of the step; the update widens a piece at a time.

Source: ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec, references
from rdukit_compiler.cost.host_memory import kernel_memory
from rdukit_compiler.ir import Value
from rdukit_compiler.passes.differentiate import OperatorShape, SectionKernels

#: Least bytes of gradients that are added up in place: there another tensor costs more than another input.
LARGE_GRADIENT: Final = 1 << 18

_LOOKUP: Final = "aten.embedding_dense_backward.default"

#: Gradients of fewer elements stay f32: they are many, and need little memory.
LEAST_ELEMENTS: Final = 1 << 16
_WIDENING: Final = "aten._to_copy.default"
_VIEWS: Final = frozenset({"aten.view.default", "aten._unsafe_view.default"})


def has_own_memory(kernels: SectionKernels, name: str, values: Mapping[str, Value]) -> bool:
    """Return whether the gradient of ``name`` surely has memory of its own, and is large enough to be added to in
    place.

    It must not be a view, nor have another output of the same size: a native library may merge two equal outputs.
    """
    assert kernels.backward is not None
    found = kernel_memory(kernels.backward, [shape.outputs for shape in kernels.backward_work])
    position = kernels.gradients.index(name)
    shared = {*found.shares, *(place for side, place in found.shares.values() if side == "o")}
    sizes = [values[each].bytes for each in kernels.gradients]
    return sizes[position] >= LARGE_GRADIENT and sizes.count(sizes[position]) == 1 and position not in shared


def accumulate_gradients(kernels: SectionKernels, names: Sequence[str], values: Mapping[str, Value]) -> SectionKernels:
    """Let the section's backward take the sums so far of the gradients of ``names`` as its last inputs.

    The backward adds to them in place and returns them instead of its own gradients.

    Args:
        values: of the graph, with the device's dtypes.
    """
    for name in names:
        kernels = _add_up(kernels, kernels.gradients.index(name), values[name])
    return kernels


def _add_up(kernels: SectionKernels, position: int, value: Value) -> SectionKernels:
    assert kernels.backward is not None
    kernel, work = kernels.backward, list(kernels.backward_work)
    made = kernel.outputs[position]
    assert made is not None
    shape = (value.shape, value.dtype)
    total = packed_spec(f"i{len(kernel.inputs)}", value.dtype, value.shape)
    calls = [number for number, node in enumerate(kernel.nodes) if node.op != "getitem"]
    nodes = list(kernel.nodes)
    number = next((i for i, node in enumerate(nodes) if node.name == made), None)
    if number is not None and _is_plain_lookup(kernel, nodes[number]):
        rows, indices = nodes[number].args[:2]
        nodes[number] = KernelNode(made, "aten.index_put_.default", (Ref(total.name), [indices], rows, True))
        place = calls.index(number)
        work[place] = OperatorShape(nodes[number].op, (shape, *work[place].inputs), (shape,))
    else:
        added = f"v{len(nodes)}"
        nodes.append(KernelNode(added, "aten.add_.Tensor", (Ref(total.name), Ref(made))))
        work.append(OperatorShape("aten.add_.Tensor", (shape, shape), (shape,)))
    outputs = (*kernel.outputs[:position], total.name, *kernel.outputs[position + 1 :])
    changed = KernelGraph((*kernel.inputs, total), tuple(nodes), outputs)
    return replace(kernels, backward=changed, backward_work=tuple(work))


def _is_plain_lookup(kernel: KernelGraph, node: KernelNode) -> bool:
    """Return whether ``node`` scatters rows over a table without other readers, and without a padding row."""
    read = [name for other in kernel.nodes for name in references([*other.args, *other.kwargs.values()])]
    is_alone = node.name not in read and kernel.outputs.count(node.name) == 1
    return node.op == _LOOKUP and is_alone and node.args[3] == -1 and node.args[4] is False


def narrow_gradients(kernels: SectionKernels, names: Iterable[str]) -> tuple[SectionKernels, frozenset[str]]:
    """Let the section's backward return bf16 products unwidened; return the ``names`` for which it does."""
    found: set[str] = set()
    for name in names:
        changed = _without_widening(kernels, kernels.gradients.index(name))
        if changed is not None:
            kernels = changed
            found.add(name)
    return kernels, frozenset(found)


def _without_widening(kernels: SectionKernels, position: int) -> SectionKernels | None:
    """Return the section without the last step to one gradient, if that widens a large bf16 product; else None."""
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
    """Return whether a value is a whole matrix product, with its elements in computed order."""
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
    """Count the times that a value is read or output."""
    read: Sequence[str] = [n for node in kernel.nodes for n in references([*node.args, *node.kwargs.values()])]
    return read.count(name) + kernel.outputs.count(name)
