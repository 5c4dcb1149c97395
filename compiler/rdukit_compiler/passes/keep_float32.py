"""Values that stay f32 on a device that computes in bf16, because rounding them gains nothing or defeats their purpose.

========================  =========================================================================================
what                      why
========================  =========================================================================================
losses, sums that leave   what a program reads and compares, and what it is made of: see ``widen_losses``
running sums              ``cumsum`` counts and locates, and differences of its numbers lose what both have in common
sequences                 ``arange``, ``linspace``, if they are given a dtype or bf16 lacks their numbers: it has no odd
                          integers above 256
what the program names    tensors that forward makes with ``dtype=torch.float32``; ``dtype=x.dtype`` means the device's
what nobody rounds        inputs, buffers and parameters of which operators make nothing in bf16: a target that only the
                          loss reads, rotary frequencies, a time step that is converted with ``.float()``
========================  =========================================================================================

From there f32 spreads as torch promotes: to what is computed with it, never from a tensor without dimensions to one
that has some. ``widen_losses`` chooses the operators that compute in f32 because they belong to a loss:

========================  =========================================================================================
what                      why
========================  =========================================================================================
losses                    operators that are one, in the form of ``run_operator``, and what torch's own loss functions
                          are made of where they are several operators: also the loss of each element
sums that leave           a sum, mean, norm or similarity from which only results are made: rounding it at the very
                          end saves a few bytes. Not a mean inside a network, which would widen the layers behind it
what only those read      a loss by hand is a sum of something: differences, squares, logarithms, ``log_softmax``.
                          Rounded before it is added up, each number would be off by 0.2 %. Only what works element by
                          element, adds up or gives chances, up to the product or layer that made the numbers, and
                          nothing that others read or that is a result itself
========================  =========================================================================================

All of it reads bf16 from the layers in front and is part of one pass over their results, so that no layer computes
otherwise. Source: ours, as the vendor's tolerance for losses asks; the vendor computes in bf16 "whatever the host dtype
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

#: Operators that make a sequence without an operand.
_SEQUENCES: Final = frozenset({"arange", "linspace", "logspace"})
_TAKING_DTYPE: Final = frozenset({"aten.type_as.default", "aten.to.other"})

#: Operators that reduce many numbers to fewer.
SUMS: Final = frozenset(
    "sum mean nansum nanmean var std norm linalg_vector_norm linalg_norm prod logsumexp dot vdot trace dist "
    "cosine_similarity pairwise_distance pdist".split()
)
#: Operators that work element by element, and take operands of mixed dtypes.
ARITHMETIC: Final = frozenset(
    "add sub rsub mul div neg abs square sqrt rsqrt pow exp exp2 expm1 log log1p log2 log10 reciprocal sigmoid tanh "
    "relu softplus clamp clamp_min clamp_max maximum minimum where masked_fill nan_to_num".split()
)
#: Further operators of losses that work element by element.
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
    """Give tensors that forward makes from nothing the device's dtype too: f32 would spread through the rest.

    Sequences of numbers that bf16 lacks have not, nor what the program gives float32 by name. Integers that get the
    dtype of a buffer get the one that the program gave the buffer.
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
    """Return whether bf16 has each number of a sequence."""
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
    """Find inputs, buffers and parameters of which operators make nothing in bf16, with the values that only show them.

    Args:
        values: by name, as typed with every one of them rounded.
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
    """Return the values that are f32 if ``name`` is: moved numbers, scalars; None if an operator computes in bf16 with
    one.
    """
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
    """Return whether ``name`` has no dimensions, and so decides no dtype but that of others without."""
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
    """Return the operators that compute in f32 whoever reads them: sums that leave, parts of loss functions, and what
    comes
    after those and losses on the way out.
    """
    found: set[str] = set()
    wide: dict[str, int] = {}  # value that is f32 → elements
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
    """Return whether it is a sum that leaves, or a part of a loss function."""
    if operator.is_of_loss and operator.op_type in _COMPUTING:
        return True
    is_sum = operator.op_type in SUMS
    if operator.op_type in _LOG_CHANCES:  # of which a loss is made; many numbers, if they are the result
        is_sum = not any(name in graph.outputs for name in operator.outputs)
    return is_sum and all(map(leaving.leaves, operator.outputs))


def _goes_on(operator: Operator, graph: ModelGraph, leaving: "_Leaving", wide: Mapping[str, int]) -> bool:
    """Return whether it makes f32 of f32 that is ``wide``, not more numbers than it reads, and these leave."""
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
        #: Names of the operators that compute in f32 from now on.
        self.chosen: set[str] = set()
        #: These, operators that are losses, and those that move numbers for them.
        self._wide: set[str] = set()
        #: Operators that make no floats, such as comparisons, and those that move numbers for nothing else.
        self._neutral: set[str] = set()

    def look_at(self, operator: Operator, is_wide: bool) -> None:
        """Choose ``operator`` if nothing reads it but what was chosen, or if it ``is_wide``."""
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
    """Return the ``chosen`` that bf16 computes without an error, as they read only what layers made in bf16."""
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
    """Values that may be f32 because nothing large is made of them: only results, and non-floats."""

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
        """Return whether f32 in ``name`` reaches only what leaves through ``reader``."""
        made = [self._graph.values[output] for output in reader.outputs]
        if not any(getattr(torch, value.dtype).is_floating_point for value in made):
            return True
        size = prod(self._graph.values[name].shape)
        if reader.op_type in ARITHMETIC and not self._graph.values[name].shape and all(v.shape for v in made):
            return True  # torch promotes no tensor with dimensions by one without
        joins = reader.op_type in _JOINING
        computes = reader.op_type in ARITHMETIC | _FURTHER | _LOG_CHANCES | SUMS | RUNNING_SUMS | MOVING
        if not (joins or computes or is_loss(reader)):
            return False
        return all((joins or value.elements <= size) and self.leaves(value.name) for value in made)
