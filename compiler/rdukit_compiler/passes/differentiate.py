"""Build each section's kernels: the forward and, for training, its backward.

A section is a function of its inputs; its backward is that function's vector-Jacobian product, traced through
autograd. So every mode has the same gradients, and equal sections have equal backwards.

A section's outputs, values and gradients, are contiguous: its readers are traced on contiguous tensors, and views in
their kernels, native libraries and the optimizer's fused updates rely on that. Values that a forward saves for its
backward may be permuted, but are dense: native libraries would close gaps.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, Final

import torch
from torch import fx

from rdukit.pef.kernel import KernelGraph, references
from rdukit_compiler.backend.kernel_graph import kernel_from_fx
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.naming import dtype_name
from rdukit_compiler.operators.run_operator import run_operator
from rdukit_compiler.operators.supported import is_guard
from rdukit_compiler.passes.assign_precision import Precision
from rdukit_compiler.passes.choose_compute import DECLARED
from rdukit_compiler.passes.section_rewrites import (
    rematerialize_casts,
    rematerialize_joins,
    rematerialize_weights,
    update_in_place,
)
from rdukit_compiler.torch_private import FakeTensorMode, OpOverload, split_joint, trace_functional, without_onednn

_CLONE: Final = torch.ops.aten.clone.default
#: Operators whose results have the traced layout, whatever their operands' layout.
_SURE: Final = frozenset({
    _CLONE, torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
})  # fmt: skip

#: A tensor in the cost model: shape in elements, dtype by its torch name.
TensorShape = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """ATen call of a kernel, for the cost model."""

    op: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]


@dataclass(frozen=True, slots=True)
class SavedValue:
    """Value that a forward saves for its backward: one of the graph, or the ``index``-th extra forward output."""

    value: str | None
    index: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SectionKernels:
    """A section's kernels and the names of the values that they are bound to.

    The forward takes ``inputs`` and returns ``outputs``, then the saved extras. The backward takes ``saved``, then
    for each of ``tangents`` its number of gradient contributions, and returns the gradients of ``gradients``.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    forward: KernelGraph
    saved: tuple[SavedValue, ...]
    tangents: tuple[str, ...]
    gradients: tuple[str, ...]
    backward: KernelGraph | None
    forward_work: tuple[OperatorShape, ...]
    backward_work: tuple[OperatorShape, ...]


def section_inputs(graph: ModelGraph, operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return the values that the operators read and do not compute, in order of first use. Constants stay inside."""
    made = {name for operator in operators for name in operator.outputs}
    read = dict.fromkeys(name for operator in operators for name in operator.inputs)
    return tuple(name for name in read if name not in made)


def section_outputs(
    graph: ModelGraph, operators: Sequence[Operator], readers: Mapping[str, Sequence[Operator]] | None = None
) -> tuple[str, ...]:
    """Return the operators' results that others read, or that the graph returns or keeps, and those of guards.

    Args:
        readers: ``graph.consumers()``, if already computed.
    """
    leaving = {*graph.outputs, *graph.updates.values()}
    inside = {operator.name for operator in operators}
    consumers = graph.consumers() if readers is None else readers
    return tuple(
        name
        for operator in operators
        for name in operator.outputs
        if name in leaving or is_guard(operator) or any(c.name not in inside for c in consumers[name])
    )


def updated_positions(graph: ModelGraph, inputs: Sequence[str], outputs: Sequence[str]) -> dict[int, int]:
    """Map positions among a section's outputs to those among its inputs, of the buffers that it updates."""
    return {
        outputs.index(value): inputs.index(buffer)
        for buffer, value in graph.updates.items()
        if value in outputs and buffer in inputs
    }


def is_overwritten(graph: ModelGraph, name: str, precision: Precision) -> bool:
    """Return whether a section's input changes later, while results that depend on it may still be read.

    Inputs change with the next run, parameters with the optimizer's step, buffers when forward updates them.
    """
    value = graph.values[name]
    if value.kind is ValueKind.PARAMETER:
        return precision.training and value.requires_grad
    return value.kind is ValueKind.INPUT or name in graph.updates


def build_kernels(
    graph: ModelGraph,
    operators: Sequence[Operator],
    precision: Precision,
    contributions: Mapping[str, int],
    readers: Mapping[str, Sequence[Operator]] | None = None,
) -> SectionKernels:
    """Trace the section made of ``operators`` and split it into forward and backward.

    ``section_cache.describe_structure`` lists everything that the result depends on: keep it up to date.

    Args:
        contributions: value name → how many gradients flow into it from other sections and seeds; 0 or absent = none.
        readers: ``graph.consumers()``, if already computed.
    """
    inputs, outputs = section_inputs(graph, operators), section_outputs(graph, operators, readers)
    function = _SectionFunction(graph, operators, inputs, outputs, precision)
    overwritten = {n for n in inputs if is_overwritten(graph, n, precision)}
    tangents = tuple(n for n in outputs if graph.values[n].requires_grad and contributions.get(n, 0) > 0)
    wanted = tuple(n for n in inputs if graph.values[n].requires_grad)
    mode = FakeTensorMode()
    with mode, without_onednn():  # oneDNN's recurrent layers cannot be differentiated when traced
        primals = [_example(graph.values[n]) for n in inputs]
        if not tangents or not wanted:
            with torch.no_grad():
                traced = trace_functional(
                    lambda *tensors: _apart(function(tensors), tensors, inputs, overwritten), primals
                )
            places = updated_positions(graph, inputs, outputs)
            _pack(traced.graph, [n for n in range(len(outputs)) if n not in places])
            update_in_place(_cleaned(traced.graph), places)
            kernel = kernel_from_fx(traced.graph)
            return SectionKernels(inputs, outputs, kernel, (), (), (), None, _work(traced.graph), ())
        incoming = [_example(graph.values[n], differentiable=False) for n in tangents for _ in range(contributions[n])]
        present: list[bool] = []
        joint = trace_functional(
            _joint_function(function, outputs, inputs, tangents, wanted, contributions, present, overwritten),
            primals + incoming,
        )
    _name_placeholders(joint, len(inputs))
    forward, backward = split_joint(joint, len(outputs))
    masters = [graph.values[n].kind is ValueKind.PARAMETER and n not in graph.updates for n in inputs]
    rematerialize_casts(forward, backward, masters)
    buffers = [graph.values[n].kind is ValueKind.BUFFER and n not in graph.updates for n in inputs]
    rematerialize_weights(forward, backward, buffers)
    if graph.chips > 1:
        rematerialize_joins(forward, backward)
    gradients = tuple(name for name, there in zip(wanted, present, strict=True) if there)
    updated = {n for n in inputs if n in graph.updates}
    return _bind(inputs, outputs, tangents, gradients, forward, backward, updated)


class _SectionFunction:
    """Runs the section's operators on tensors given in the order of ``inputs``."""

    def __init__(
        self, graph: ModelGraph, operators: Sequence[Operator], inputs: Sequence[str], outputs: Sequence[str],
        precision: Precision,
    ) -> None:  # fmt: skip
        self._operators = operators
        self._inputs = inputs
        self._outputs = outputs
        self._casts = {
            name: precision.compute_dtype(graph.values[name])
            for name in inputs
            if graph.values[name].kind is not ValueKind.OPERATOR
        }

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        values: dict[str, Any] = {}
        held = dict(zip(self._inputs, tensors, strict=True))
        for name, tensor in held.items():
            dtype = self._casts.get(name, tensor.dtype)
            values[name] = tensor.to(dtype) if tensor.dtype != dtype else tensor
        for operator in self._operators:
            if _looks_up(operator) and operator.inputs[0] in self._casts:
                self._look_up(operator, values, held[operator.inputs[0]])
            elif operator.compute == DECLARED:
                self._read_exactly(operator, values, held)
            else:
                run_operator(operator, values)
        return [values[name] for name in self._outputs]

    def _read_exactly(
        self, operator: Operator, values: dict[str, Any], held: Mapping[str, torch.Tensor]
    ) -> None:  # fmt: skip
        """Run an operator that keeps its declared precision on the section's inputs without rounding them."""
        seen = {**values, **{name: held[name] for name in operator.inputs if name in held}}
        run_operator(operator, seen)
        values.update((name, seen[name]) for name in operator.outputs)

    def _look_up(self, operator: Operator, values: dict[str, Any], table: torch.Tensor) -> None:
        """Round the rows that are read, not the table: the rows are the same, and the gradient keeps the table's
        dtype.
        """
        rounded = values[operator.inputs[0]]
        seen = {**values, operator.inputs[0]: table}
        run_operator(operator, seen)
        (made,) = operator.outputs
        values[made] = seen[made].to(rounded.dtype)


def _looks_up(operator: Operator) -> bool:
    """Return whether the operator looks up rows of its first input, with a dense gradient."""
    is_lookup = operator.op == "aten.embedding.default" and bool(references([*operator.args[:1]]))
    return is_lookup and not operator.compute and True not in operator.args[4:]


def _joint_function(
    function: _SectionFunction, outputs: Sequence[str], inputs: Sequence[str], tangents: Sequence[str],
    wanted: Sequence[str], contributions: Mapping[str, int], present: list[bool], overwritten: Collection[str],
) -> Any:  # fmt: skip
    def joint(*flat: torch.Tensor) -> list[torch.Tensor]:
        primals, incoming = list(flat[: len(inputs)]), list(flat[len(inputs) :])
        made = function(primals)
        by_name = dict(zip(outputs, made, strict=True))
        summed = []
        for name in tangents:
            parts, incoming = incoming[: contributions[name]], incoming[contributions[name] :]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            summed.append(total)
        sources = [primals[inputs.index(name)] for name in wanted]
        grads = torch.autograd.grad([by_name[n] for n in tangents], sources, summed, allow_unused=True)
        present[:] = [grad is not None for grad in grads]
        leaving = _apart(made, primals, inputs, overwritten)
        return [*leaving, *(grad.contiguous() for grad in grads if grad is not None)]

    return joint


def _apart(
    made: Sequence[torch.Tensor], primals: Sequence[torch.Tensor], inputs: Sequence[str], overwritten: Collection[str]
) -> list[torch.Tensor]:
    """Return a section's results as contiguous tensors; copy those in memory that is overwritten before they are
    read.
    """
    places = {p.untyped_storage()._cdata for p, n in zip(primals, inputs, strict=True) if n in overwritten}
    packed = [tensor.contiguous() for tensor in made]
    return [tensor.clone() if tensor.untyped_storage()._cdata in places else tensor for tensor in packed]


def _bind(
    inputs: tuple[str, ...], outputs: tuple[str, ...], tangents: tuple[str, ...], gradients: tuple[str, ...],
    forward: fx.GraphModule, backward: fx.GraphModule, updated: Collection[str],
) -> SectionKernels:  # fmt: skip
    """Identify each saved value, and drop from the forward's outputs those that exist already.

    Args:
        updated: buffers that change before backward runs, for which copies are saved.
    """
    (result,) = [node for node in forward.graph.nodes if node.op == "output"]
    leaving: list[Any] = list(result.args[0])
    known = dict(zip(leaving[: len(outputs)], outputs, strict=True))
    known |= dict(zip([n for n in forward.graph.nodes if n.op == "placeholder"], inputs, strict=False))
    # The forward may lack placeholders that only the backward reads: match those by their position in the name.
    by_placeholder = {f"primals_{i + 1}": name for i, name in enumerate(inputs)}
    extras: list[fx.Node] = []
    saved: list[SavedValue] = []
    produced = {node.name: node for node in leaving if isinstance(node, fx.Node)}
    for node in backward.graph.nodes:
        if node.op != "placeholder" or node.name.startswith("tangents_"):
            continue
        if node.name in by_placeholder and by_placeholder[node.name] not in updated:
            saved.append(SavedValue(by_placeholder[node.name], -1))
            continue
        source = _copied(node.name, result) if node.name in by_placeholder else produced[node.name]
        if source in known:
            saved.append(SavedValue(known[source], -1))
            continue
        if source not in extras:
            extras.append(source)
        node.meta["val"] = value = _as_dense(node.meta["val"])
        saved.append(SavedValue(None, extras.index(source), dtype_name(value.dtype), tuple(map(int, value.shape))))
    result.args = ((*leaving[: len(outputs)], *(_dense_node(node, result) for node in extras)),)
    _pack(forward.graph, range(len(outputs)))
    _pack(backward.graph, range(len(gradients)))
    _restore_placeholders(forward, len(inputs))
    return SectionKernels(
        inputs, outputs, kernel_from_fx(_cleaned(forward.graph)), tuple(saved), tangents, gradients,
        kernel_from_fx(_cleaned(backward.graph)), _work(forward.graph), _work(backward.graph),
    )  # fmt: skip


def _copied(placeholder: str, result: fx.Node) -> fx.Node:
    """Return a copy of a forward's input, made before anything else overwrites it."""
    (node,) = (n for n in result.graph.nodes if n.op == "placeholder" and n.name == placeholder)
    with result.graph.inserting_after(node):
        copy = result.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def _pack(graph: fx.Graph, positions: Iterable[int]) -> None:
    """Copy outputs at ``positions`` that might not be contiguous, although their traced strides are.

    If an operand is not contiguous, an operator's result may have other strides than torch infers;
    ``hardswish_backward`` is an example. A fused optimizer reads gradients in memory order.
    """
    (result,) = [node for node in graph.nodes if node.op == "output"]
    leaving, doubtful = list(result.args[0]), _find_doubtful(graph)
    for position in positions:
        if leaving[position] in doubtful:
            with graph.inserting_before(result):
                copy = graph.call_function(_CLONE, (leaving[position],), {"memory_format": torch.contiguous_format})
            copy.meta = dict(leaving[position].meta)
            leaving[position] = copy
    result.args = (tuple(leaving),)


def _find_doubtful(graph: fx.Graph) -> set[fx.Node]:
    """Return the values whose inferred strides are uncertain: those computed from a non-contiguous or uncertain
    value.
    """
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.target in _SURE:
            continue
        values = [] if _is_view(node) else [source.meta.get("val") for source in node.all_input_nodes]
        is_permuted = any(isinstance(value, torch.Tensor) and not value.is_contiguous() for value in values)
        if is_permuted or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_view(node: fx.Node) -> bool:
    if node.target is getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _dense_node(node: fx.Node, result: fx.Node) -> fx.Node:
    """Return ``node``, or a copy of it without gaps between its elements."""
    if _is_dense(node.meta["val"]):
        return node
    with result.graph.inserting_before(result):
        copy = result.graph.call_function(
            torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
        )
    copy.meta = {**node.meta, "val": _as_dense(node.meta["val"])}
    return copy


def _as_dense(value: torch.Tensor) -> torch.Tensor:
    return value if _is_dense(value) else value.contiguous()


def _is_dense(value: torch.Tensor) -> bool:
    """Return whether the elements fill memory without gaps and overlaps: native libraries do not preserve other
    strides.
    """
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(value.stride(), value.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _restore_placeholders(forward: fx.GraphModule, count: int) -> None:
    """Give the forward all primals as placeholders again, in order: the partitioner drops unused ones."""
    present = {node.name: node for node in forward.graph.nodes if node.op == "placeholder"}
    missing = [f"primals_{i + 1}" for i in range(count) if f"primals_{i + 1}" not in present]
    if missing:
        raise AssertionError(f"the partitioner dropped {missing}; a section must read each of its inputs forward")


def _name_placeholders(joint: fx.GraphModule, primals: int) -> None:
    for position, node in enumerate(n for n in joint.graph.nodes if n.op == "placeholder"):
        is_primal = position < primals
        node.name = node.target = f"primals_{position + 1}" if is_primal else f"tangents_{position - primals + 1}"
    joint.recompile()


def _cleaned(graph: fx.Graph) -> fx.Graph:
    """Remove operators without effect (``detach``, ``alias``) and unread values."""
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) in {"aten.detach.default", "aten.alias.default"}:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _work(graph: fx.Graph) -> tuple[OperatorShape, ...]:
    """Return the shapes of each call's operands and results."""
    return tuple(
        OperatorShape(
            str(node.target),
            _shapes([n.meta.get("val") for n in node.all_input_nodes]),
            _shapes([node.meta.get("val")]),
        )
        for node in graph.nodes
        if node.op == "call_function" and isinstance(node.target, OpOverload)
    )


def _shapes(values: Sequence[object]) -> tuple[TensorShape, ...]:
    found: list[TensorShape] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append((tuple(map(int, value.shape)), dtype_name(value.dtype)))
        elif isinstance(value, list | tuple):
            found.extend(_shapes(value))
    return tuple(found)


def _example(value: Value, differentiable: bool = True) -> torch.Tensor:
    return torch.empty(
        value.shape, dtype=getattr(torch, value.dtype), requires_grad=differentiable and value.requires_grad
    )
