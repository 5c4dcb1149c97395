"""Inputs whose numbers choose rows of a table: which numbers are legal, and whether a request has others. Pure.

A number outside the table would fail the whole batch on the device, and with it what others sent; so it is refused
before. Source: ours.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import KernelGraph, Ref
from rdukit.pef.model import Pef
from rdukit_modelbox.serving.requests import InferRequest
from rdukit_modelbox.serving.signature import Signature

#: Operators after which a tensor has still the same numbers.
_SAME_NUMBERS: Final = frozenset(
    (
        "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten._to_copy.default",
        "aten.to.dtype", "aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.t.default",
        "aten.permute.default", "aten.transpose.int", "aten.flatten.using_ints", "aten.unsqueeze.default",
        "aten.squeeze.default", "aten.squeeze.dim", "aten.expand.default", "aten.slice.Tensor", "aten.select.int",
    )
)  # fmt: skip


def find_tables(
    pef: Pef, kernels: Mapping[str, KernelGraph], sections: Iterable[int], inputs: Sequence[str]
) -> dict[str, int]:
    """Input symbol → rows of the smallest table that its numbers choose from; others are left out.

    ``sections`` are run in their order; tables are found where an input reaches them as it came.
    """
    by_id = {section.id: section for section in pef.sections}
    #: Symbol → the input whose numbers it has.
    origins = {name: name for name in inputs}
    rows: dict[str, int] = {}
    for number in sections:
        section = by_id[number]
        kernel = kernels.get(section.kernel)
        if kernel is None:
            continue
        names = [spec.name for spec in kernel.inputs]
        same = {name: origins[s] for name, s in zip(names, section.inputs, strict=True) if s in origins}
        shapes = {spec.name: spec.shape for spec in kernel.inputs}
        for node in kernel.nodes:
            given = [argument.name if isinstance(argument, Ref) else None for argument in node.args]
            if node.op in _SAME_NUMBERS and given and given[0] in same:
                same[node.name] = same[given[0]]
            table, indices, dimension = _lookup(node.op, node.args, given)
            if table in shapes and indices in same:
                origin = same[indices]
                rows[origin] = min(rows.get(origin, shapes[table][dimension]), shapes[table][dimension])
        for symbol, value in zip(section.outputs, kernel.outputs, strict=True):
            if value in same:
                origins[symbol] = same[value]
    return rows


def _lookup(op: str, arguments: Sequence[object], names: Sequence[str | None]) -> tuple[str, str, int]:
    """Names of the table and of the indices, and the dimension they choose along; empty names if it is no lookup."""
    match op:
        case "aten.embedding.default":
            return names[0] or "", names[1] or "", 0
        case "aten.index_select.default":
            dimension = arguments[1]
            return names[0] or "", names[2] or "", dimension if isinstance(dimension, int) else 0
    return "", "", 0


def check_indices(signature: Signature, request: InferRequest) -> None:
    """Before the work: do all indices choose a row? Tensors that are wrong otherwise are left to ``check_request``.

    Raises:
        InvalidArgument: a number is negative or beyond its table.
    """
    for tensor in request.inputs:
        spec = signature.input_of.get(tensor.name)
        if spec is None or spec.rows_of_table is None or tensor.datatype != spec.datatype:
            continue
        code = spec.type.array_code
        if code is None or len(tensor.data) % spec.type.size or not len(tensor.data):
            continue
        numbers = array(code, bytes(tensor.data))
        low, high = min(numbers), max(numbers)
        if low < 0 or high >= spec.rows_of_table:
            wrong = low if low < 0 else high
            raise InvalidArgument(
                f"input {spec.name!r}: {wrong} is not legal; legal: 0 to {spec.rows_of_table - 1}, rows of a table"
            )
