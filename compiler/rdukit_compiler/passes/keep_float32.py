"""Chooses values that stay f32 on a device that computes in bf16, because rounding them saves little or spoils them.

========================  =========================================================================================
what                      why
========================  =========================================================================================
losses, sums that leave   the program reads and compares them: see ``widen_losses``
running sums              ``cumsum`` counts and locates, and differences of its numbers cancel
sequences                 ``arange``, ``linspace``, if they are given a dtype or bf16 lacks their numbers: it has no odd
                          integers above 256
what the program names    tensors that forward makes with ``dtype=torch.float32``; ``dtype=x.dtype`` means the device's
unrounded inputs          inputs, buffers and parameters without a bf16 result: a target that only the loss reads,
                          rotary frequencies, a time step that is converted with ``.float()``
========================  =========================================================================================

From there f32 spreads by torch's promotion: to results computed with it, but never from a tensor without dimensions to
one that has some. ``widen_losses`` chooses the operators that compute in f32 because they belong to a loss:

========================  =========================================================================================
what                      why
========================  =========================================================================================
losses                    loss operators, in the form of ``run_operator``, and the operators of torch's composite loss
                          functions, including the loss of each element
sums that leave           a sum, mean, norm or similarity that only leads to results: rounding it at the end saves a few
                          bytes. Not a mean inside a network, which would widen the layers after it
operands of those alone   a custom loss is a sum of differences, squares, logarithms or ``log_softmax``. If they were
                          rounded before the sum, each number would be off by 0.2 %. Only element-wise operators, sums
                          and probabilities after the last product or layer are widened, and only if they have no other
                          readers and are not results
========================  =========================================================================================

All of these read bf16 from the layers before them, in one pass over their results, so no layer's computation changes.
Source: ours, as the vendor's tolerance for losses asks; the vendor computes in bf16 "whatever the host dtype
says" (SDK reference 16).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

import torch

from rdukit.pef.kernel import Ref, Special, references
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.naming import callable_of, decode
from rdukit_compiler.operators.vocabulary import RUNNING_SUMS, VIEWS, is_loss
from rdukit_compiler.passes.choose_compute import DECLARED, WIDE

ROUNDED: Final = frozenset({torch.float32, torch.float64, torch.float16})
_FLOAT32: Final = Special("dtype", "float32")
_BFLOAT16: Final = Special("dtype", "bfloat16")

#: Operators that create a sequence without an operand.
_SEQUENCES: Final = frozenset({"arange", "linspace", "logspace"})
_TAKING_DTYPE: Final = frozenset({"aten.type_as.default", "aten.to.other"})

#: Operators that reduce many numbers to fewer.
SUMS: Final = frozenset(
    "sum mean nansum nanmean var std norm linalg_vector_norm linalg_norm prod logsumexp dot vdot trace dist "
    "cosine_similarity pairwise_distance pdist".split()
)
#: Element-wise operators that accept operands of mixed dtypes.
ARITHMETIC: Final = frozenset(
    "add sub rsub mul div neg abs square sqrt rsqrt pow exp exp2 expm1 log log1p log2 log10 reciprocal sigmoid tanh "
    "relu softplus clamp clamp_min clamp_max maximum minimum where masked_fill nan_to_num".split()
)
#: Further element-wise operators of losses.
_FURTHER: Final = frozenset(
    "log_sigmoid logit xlogy special_xlogy special_xlog1py entr special_entr logaddexp logaddexp2 addcmul addcdiv lerp "
    "hypot atan2 sin cos cosh acos erf lgamma digamma sign min max amin amax".split()
)
_CHANCES: Final = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax"})
_LOG_CHANCES: Final = frozenset({"log_softmax", "_log_softmax"})
_COMPUTING: Final = ARITHMETIC | _FURTHER | _CHANCES | SUMS
#: Operators that bf16 computes without an error.
_EXACT: Final = frozenset({"relu", "neg", "abs"})
_JOINING: Final = frozenset({"cat", "stack"})
#: Operators that move numbers of their first operand and compute nothing.
MOVING: Final = VIEWS | frozenset(
    "clone index index_select gather embedding flip roll repeat repeat_interleave take take_along_dim".split()
)


def with_device_dtype(operator: Operator, graph: ModelGraph) -> Operator:
    """Assign the device's dtype to tensors that forward creates, too; otherwise their f32 would spread.

    Exceptions are sequences of numbers that bf16 lacks, and tensors that the program declares as float32. Integers that
    are converted to a buffer's dtype get the program's dtype of the buffer.
    """
    if operator.op in _TAKING_DTYPE:
        return _with_buffer_dtype(operator, graph)
    if operator.inputs or len(operator.outputs) != 1 or operator.compute == DECLARED:
        return operator
    if getattr(torch, graph.values[operator.outputs[0]].dtype) not in ROUNDED:
        return operator
    is_sequence, is_given = operator.op_type in _SEQUENCES, operator.kwargs.get("dtype") is not None
    if (is_given and (is_sequence or operator.names_dtype)) or (is_sequence and not _fits_bf16(operator)):
        return operator
    schema = getattr(callable_of(operator.op), "_schema", None)
    if schema is None or not any(argument.name == "dtype" for argument in schema.arguments):
        return operator
    return replace(operator, kwargs={**operator.kwargs, "dtype": _BFLOAT16})


def _fits_bf16(operator: Operator) -> bool:
    """Return whether bf16 can represent each number of a sequence."""
    keywords = {key: decode(value, {}) for key, value in operator.kwargs.items()}
    numbers = callable_of(operator.op)(*(decode(argument, {}) for argument in operator.args), **keywords)
    return bool(torch.equal(numbers.bfloat16().to(numbers.dtype), numbers))


def _with_buffer_dtype(operator: Operator, graph: ModelGraph) -> Operator:
    """Convert ``positions.type_as(self.inv_freq)`` to the buffer's dtype in the program."""
    read = [argument.name for argument in operator.args[:2] if isinstance(argument, Ref)]
    if len(read) != 2:
        return operator
    source, other = (graph.values[name] for name in read)
    is_count = not getattr(torch, source.dtype).is_floating_point and source.dtype != "bool"
    if not is_count or other.kind is not ValueKind.BUFFER or other.dtype != "float32":
        return operator
    return replace(operator, op="aten.to.dtype", op_type="to", args=(Ref(read[0]), _FLOAT32), kwargs={})


def find_exact(graph: ModelGraph, operators: Sequence[Operator], values: Mapping[str, Value]) -> dict[str, list[str]]:
    """Find inputs, buffers and parameters without a result in bf16, and the values that only move their numbers.

    Args:
        values: by name, with the dtypes that follow if all of these are rounded.
    """
    readers: dict[str, list[Operator]] = {name: [] for name in values}
    for operator in operators:
        for name in operator.inputs:
            readers[name].append(operator)
    found: dict[str, list[str]] = {}
    for value in graph.values.values():
        if value.kind is ValueKind.OPERATOR or getattr(torch, value.dtype) not in ROUNDED or not readers[value.name]:
            continue
        if value.name not in graph.updates and (shown := _shown_exactly(value.name, readers, values)) is not None:
            found[value.name] = shown
    return found


def _shown_exactly(
    name: str, readers: Mapping[str, Sequence[Operator]], values: Mapping[str, Value]
) -> list[str] | None:  # fmt: skip
    """Return the values that become f32 with ``name``: moved numbers and scalars; None if one has a result in bf16."""
    shown: list[str] = []
    for operator in readers[name]:
        if operator.compute == DECLARED:
            continue
        moves = operator.op_type in MOVING and references(operator.args[:1]) == [name]
        if not operator.compute and (moves or _is_scalar(name, operator, values)):
            for made in (output for output in operator.outputs if moves or not values[output].shape):
                further = _shown_exactly(made, readers, values)
                if further is None:
                    return None
                shown += [made, *further]
        elif any(values[made].dtype in {"bfloat16", "float16"} for made in operator.outputs):
            return None
    return shown


def _is_scalar(name: str, reader: Operator, values: Mapping[str, Value]) -> bool:
    """Return whether ``name`` has no dimensions, so that it only affects the dtype of results without dimensions."""
    return not values[name].shape and reader.op_type in ARITHMETIC


def widen_losses(operators: Sequence[Operator], graph: ModelGraph) -> tuple[Operator, ...]:
    """Make the operators of losses compute in f32.

    Args:
        graph: has the values with the program's dtypes.
    """
    leaving = _Leaving(graph)
    wide = _wide_by_themselves(operators, graph, leaving)
    before = _Before(graph)
    for operator in reversed(operators):
        before.look_at(operator, operator.name in wide)
    chosen = before.chosen - _needless(operators, before.chosen, graph)
    return tuple(replace(o, compute=DECLARED) if o.name in chosen else o for o in operators)


def _wide_by_themselves(operators: Sequence[Operator], graph: ModelGraph, leaving: "_Leaving") -> set[str]:
    """Return the operators that compute in f32 whatever reads them.

    These are sums that leave, parts of loss functions, and element-wise operators between these or losses and a result.
    """
    found: set[str] = set()
    wide: dict[str, int] = {}  # f32 value → elements
    for operator in operators:
        made = [graph.values[name] for name in operator.outputs]
        if not is_loss(operator):
            if any(value.dtype != "float32" for value in made):
                continue
            if _is_wide(operator, graph, leaving):
                found.add(operator.name)
            elif not _goes_on(operator, graph, leaving, wide):
                continue
            elif operator.op_type in ARITHMETIC | _FURTHER:
                found.add(operator.name)
        wide.update((value.name, value.elements) for value in made)
    return found


def _is_wide(operator: Operator, graph: ModelGraph, leaving: "_Leaving") -> bool:
    """Return whether the operator is a sum that leaves, or a part of a loss function."""
    if operator.is_of_loss and operator.op_type in _COMPUTING:
        return True
    is_sum = operator.op_type in SUMS
    if operator.op_type in _LOG_CHANCES:  # part of a loss, unless it is itself a result
        is_sum = not any(name in graph.outputs for name in operator.outputs)
    return is_sum and all(map(leaving.leaves, operator.outputs))


def _goes_on(operator: Operator, graph: ModelGraph, leaving: "_Leaving", wide: Mapping[str, int]) -> bool:
    """Return whether the operator maps ``wide`` f32 values to as many or fewer numbers, all of which leave."""
    if operator.op_type not in ARITHMETIC | _FURTHER | MOVING or operator.compute not in {None, WIDE}:
        return False
    made = [graph.values[name] for name in operator.outputs]
    read = [graph.values[name] for name in operator.inputs if name in wide]
    most = max((value.elements for value in read if value.shape or not any(m.shape for m in made)), default=0)
    return all(value.elements <= most and leaving.leaves(value.name) for value in made)


class _Before:
    """Operators whose only readers are losses and sums that leave the graph; visited from the last to the first."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        self._readers = graph.consumers()
        self._results = frozenset({*graph.outputs, *graph.updates.values()})
        #: Names of the operators that shall compute in f32.
        self.chosen: set[str] = set()
        #: Names of these, of losses, and of operators that move numbers for them.
        self._wide: set[str] = set()
        #: Names of operators without floating results, such as comparisons, and of those that move numbers only for
        #: them.
        self._neutral: set[str] = set()

    def look_at(self, operator: Operator, is_wide: bool) -> None:
        """Choose ``operator`` if only chosen operators and losses read it, or if it ``is_wide``."""
        made = [getattr(torch, self._graph.values[name].dtype) for name in operator.outputs]
        if is_wide:
            self._choose(operator)
        elif is_loss(operator):
            self._wide.add(operator.name)
        elif not any(dtype.is_floating_point or dtype.is_complex for dtype in made):
            self._neutral.add(operator.name)
        elif self._results.isdisjoint(operator.outputs) and all(
            dtype is torch.float32 for dtype in made if dtype.is_floating_point or dtype.is_complex
        ):
            readers = {reader.name for name in operator.outputs for reader in self._readers[name]}
            if not readers or not readers <= self._wide | self._neutral:
                return
            is_for_losses = not readers <= self._neutral
            if operator.op_type in MOVING | _JOINING:
                (self._wide if is_for_losses else self._neutral).add(operator.name)
            elif is_for_losses and operator.op_type in _COMPUTING and operator.compute in {None, WIDE}:
                self._choose(operator)

    def _choose(self, operator: Operator) -> None:
        self._wide.add(operator.name)
        self.chosen.add(operator.name)


def _needless(operators: Sequence[Operator], chosen: set[str], graph: ModelGraph) -> set[str]:
    """Return the ``chosen`` that are exact in bf16, because they read only bf16 results of layers."""
    wide: set[str] = {value.name for value in graph.values.values() if value.kind is not ValueKind.OPERATOR}
    found: set[str] = set()
    for operator in operators:
        reads_wide = not wide.isdisjoint(operator.inputs)
        if operator.name in chosen and operator.op_type in _EXACT and not reads_wide:
            found.add(operator.name)
        elif operator.name in chosen or is_loss(operator) or (operator.op_type in MOVING | _JOINING and reads_wide):
            wide.update(operator.outputs)
    return found


class _Leaving:
    """Values that may be f32 because they only lead to small values: results, and non-floats."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        self._readers = graph.consumers()
        self._kept = frozenset(graph.updates.values())
        self._known: dict[str, bool] = {}

    def leaves(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = name not in self._kept and all(self._is_end(name, o) for o in self._readers[name])
        return self._known[name]

    def _is_end(self, name: str, reader: Operator) -> bool:
        """Return whether f32 in ``name`` reaches only values that leave through ``reader``."""
        made = [self._graph.values[output] for output in reader.outputs]
        if not any(getattr(torch, value.dtype).is_floating_point for value in made):
            return True
        size = prod(self._graph.values[name].shape)
        if reader.op_type in ARITHMETIC and not self._graph.values[name].shape and all(v.shape for v in made):
            return True  # a tensor without dimensions does not promote one with dimensions
        joins = reader.op_type in _JOINING
        computes = reader.op_type in ARITHMETIC | _FURTHER | _LOG_CHANCES | SUMS | RUNNING_SUMS | MOVING
        if not (joins or computes or is_loss(reader)):
            return False
        return all((joins or value.elements <= size) and self.leaves(value.name) for value in made)
