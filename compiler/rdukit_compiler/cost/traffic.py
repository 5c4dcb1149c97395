"""Traffic: the tensors of a section that the chip would move through device memory.

The emulation keeps the tensors from which a host computes backward fastest. The chip trades otherwise: arithmetic other
than matrix products is free in the pipeline, and device memory is scarce. So of the tensors that forward keeps for
backward, only results of matrix products count. Norms, activation functions, softmax of stored scores, casts, views and
dropout masks (from their seed) are recomputed from tensors that are in memory anyway. Of a table that is only looked
up, the rows that are read count.

Source: ours. The reason is the published traffic of a BERT-large step (compiler reference 9.4: 65 GB/s for 0.606 s),
which is half of the traffic if all of that were stored. Recomputed arithmetic is not counted.
"""

from collections.abc import Mapping, Sequence
from math import prod

from rdukit.pef.kernel import KernelGraph, KernelNode, references
from rdukit.pef.model import ITEM_BYTES
from rdukit_compiler.cost.work import GEMM_COUNTS, Shape, base_name

#: Operators that are not recomputed: they gather from memory, or need a whole batch before the first element.
_STORED = frozenset({"embedding", "index", "index_select", "gather", "topk", "sort", "cumsum"})


def derivable_extras(kernel: KernelGraph, outputs: int) -> dict[int, frozenset[str]]:
    """Return the extra outputs of a forward kernel that backward can recompute without a matrix product.

    Args:
        kernel: a forward; its first ``outputs`` outputs are the section's own, the rest are kept for backward.
    Returns:
        Position among the extras → names of the kernel's values, all in memory, from which it is computed.
    """
    in_memory = {spec.name for spec in kernel.inputs} | {name for name in kernel.outputs[:outputs] if name}
    extras = {name: index for index, name in enumerate(kernel.outputs[outputs:]) if name}
    sources: dict[str, frozenset[str] | None] = {name: frozenset({name}) for name in in_memory}
    found: dict[int, frozenset[str]] = {}
    for node in kernel.nodes:
        if node.name in in_memory:
            continue
        made = None if _is_stored(node) else _union(sources, node)
        if node.name in extras:
            if made is None:
                made = frozenset({node.name})
            else:
                found[extras[node.name]] = made
        sources[node.name] = made
    return found


def looked_up_bytes(
    kernel: KernelGraph, work: Sequence[tuple[str, Sequence[Shape], Sequence[Shape]]]
) -> dict[int, int]:
    """Return the inputs of a kernel that are only looked up, and the bytes of the rows that are read.

    Args:
        work: operator, input shapes and output shapes of each of the kernel's calls.
    """
    readers: dict[str, list[KernelNode]] = {}
    for node in kernel.nodes:
        for name in references([*node.args, *node.kwargs.values()]):
            readers.setdefault(name, []).append(node)
    found = {}
    for position, spec in enumerate(kernel.inputs):
        reading = readers.get(spec.name, [])
        if len(reading) == 1 and base_name(reading[0].op) in {"_to_copy", "to"}:
            reading = readers.get(reading[0].name, [])
        if not reading or any(base_name(node.op) != "embedding" for node in reading):
            continue
        rows = [
            prod(made[0][0])
            for op, read, made in work
            if base_name(op) == "embedding" and read and read[0][0] == spec.shape
        ]
        if rows:
            found[position] = min(sum(rows), prod(spec.shape)) * ITEM_BYTES[spec.dtype]
    return found


def _union(sources: Mapping[str, frozenset[str] | None], node: KernelNode) -> frozenset[str] | None:
    together: set[str] = set()
    for name in references([*node.args, *node.kwargs.values()]):
        known = sources.get(name)
        if known is None:
            return None
        together |= known
    return frozenset(together)


def _is_stored(node: KernelNode) -> bool:
    word = base_name(node.op)
    return word in GEMM_COUNTS or word in _STORED or "batch_norm" in word or "pool" in word
