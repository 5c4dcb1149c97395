"""Values that let any PEF run: numbers where it reads numbers, legal indices where it reads indices.

Small random numbers go into inputs and parameters; buffers get positive ones, for a variance may be among them;
integers get zeros, or random rows where only table look-ups read them, so that a look-up is as slow as it is in use;
truth values are true, for an empty attention mask makes no numbers. Optimizer state keeps its zeros.

Source: ours.
"""

from collections.abc import Mapping
from typing import Final

import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, references
from rdukit.pef.model import Pef, SymbolKind
from rdukit_runtime.engine.program import Program

_SEED: Final = 20
_SCALE: Final = 0.05
#: Operators that hand on the same indices.
_SAME_INDICES: Final = frozenset(
    {"aten.view.default", "aten.reshape.default", "aten.unsqueeze.default", "aten.squeeze.dim", "aten.clone.default",
     "aten._unsafe_view.default", "aten.expand.default", "aten.contiguous.default"}
)  # fmt: skip
#: Operators after which a table has as many rows as before.
_SAME_ROWS: Final = frozenset(
    {"aten.to.dtype", "aten._to_copy.default", "prims.convert_element_type.default", "aten.clone.default"}
)
_LOOK_UP: Final = "aten.embedding.default"
_LOOK_UP_GRADIENT: Final = "aten.embedding_dense_backward.default"


def fill_program(program: Program, kernels: Mapping[str, KernelGraph]) -> None:
    """Put such values into every input, parameter and buffer, in place."""
    bounds = index_bounds(program.pef, kernels)
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, symbol in program.pef.symbols.items():
            if symbol.kind not in {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER}:
                continue
            tensor = torch.zeros(symbol.shape, dtype=getattr(torch, symbol.dtype))
            if tensor.is_floating_point():
                tensor.normal_(0, _SCALE, generator=generator)
                if symbol.kind is SymbolKind.BUFFER:
                    tensor.abs_()
            elif tensor.dtype == torch.bool:
                tensor.fill_(True)
            elif bounds.get(name, 0) > 1:
                tensor.random_(0, bounds[name], generator=generator)
            program.write(name, tensor)


def index_bounds(pef: Pef, kernels: Mapping[str, KernelGraph]) -> dict[str, int]:
    """Symbols that nothing but table look-ups read → the number of rows of the smallest of these tables."""
    found: dict[str, int] = {}
    for section in pef.sections:
        bounds = _kernel_bounds(kernels[section.kernel])
        for name, bound in zip(section.inputs, bounds, strict=True):
            found[name] = min(found.get(name, bound), bound)
    return {name: bound for name, bound in found.items() if bound}


def _kernel_bounds(kernel: KernelGraph) -> list[int]:
    """For each input the rows of the smallest table that it indexes; 0 if anything else reads it."""
    readers: dict[str, list[KernelNode]] = {}
    for node in kernel.nodes:
        for name in references([*node.args, *node.kwargs.values()]):
            readers.setdefault(name, []).append(node)
    rows = {spec.name: spec.shape[0] if spec.shape else 0 for spec in kernel.inputs}
    for node in kernel.nodes:
        if node.op in _SAME_ROWS and isinstance(table := node.args[0], Ref):
            rows[node.name] = rows.get(table.name, 0)
    return [_bound_of(spec.name, readers, rows, kernel.outputs) for spec in kernel.inputs]


def _bound_of(
    name: str, readers: Mapping[str, list[KernelNode]], rows: Mapping[str, int], outputs: tuple[str | None, ...]
) -> int:
    if name in outputs or name not in readers:
        return 0
    return min(_rows_read(name, node, readers, rows, outputs) for node in readers[name])


def _rows_read(
    name: str, node: KernelNode, readers: Mapping[str, list[KernelNode]], rows: Mapping[str, int],
    outputs: tuple[str | None, ...],
) -> int:  # fmt: skip
    """What the indices called ``name`` may be below, by one of their readers."""
    match (node.op, node.args):
        case (op, _) if op in _SAME_INDICES:
            return _bound_of(node.name, readers, rows, outputs)
        case (op, (Ref(table), Ref(indices), *_)) if op == _LOOK_UP and indices == name:
            return rows.get(table, 0)
        case (op, (_, Ref(indices), int(count), *_)) if op == _LOOK_UP_GRADIENT and indices == name:
            return count
    return 0
