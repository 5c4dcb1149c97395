"""The optimizer as the compiler sees it, and the kernels of its sections.

State names follow the SDK reference 9 and 20: ``<param>__sgd0__momentum``. Run-time scalars are named
``<kind><index>.<scalar>`` (``sgd0.lr``); a program's ``lr`` sets every ``….lr``.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from rdukit.errors import CompileError
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, Special, TensorSpec, packed_spec
from rdukit_compiler.ir import Value

#: Optimizer kind → names of its state tensors per parameter; ``step`` is a scalar, the rest have the parameter's shape.
STATES: Final = {
    "sgd": ("momentum",),
    "adamw": ("exp_avg", "exp_avg_sq", "step"),
    "adam": ("exp_avg", "exp_avg_sq", "step"),
    "adamwamsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"),
    "adamamsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"),
    "sparseadamw": ("exp_avg", "exp_avg_sq", "step"),
    "adagrad": ("sum", "step"),
}
#: Optimizer kind → the operator that rounds like torch's default update, if the fast one does not.
EXACT_UPDATES: Final = {"adamw": "adamw_stepwise"}
#: Optimizer kinds whose operators accept bf16 gradients of f32 parameters.
TAKES_NARROW: Final = frozenset({"adamw"})


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """Parameters that one optimizer updates with one set of scalars.

    ``scalars`` are the compiled-in values: ``lr``, ``weight_decay``, and the kind's own. ``max_grad_norm`` clips the
    norm of the gradients of all groups with this value together. ``maximize`` follows the gradient instead of
    descending.
    """

    kind: str
    index: int
    parameters: tuple[str, ...]
    scalars: Mapping[str, float]
    max_grad_norm: float | None = None
    maximize: bool = False

    @property
    def label(self) -> str:
        return f"{self.kind}{self.index}"

    def state_names(self, parameter: str) -> tuple[str, ...]:
        """Return the names of a parameter's state tensors, in the order of ``STATES``."""
        return tuple(f"{parameter}__{self.label}__{state}" for state in STATES[self.kind])

    def state_shape(self, state: str, parameter: Value) -> tuple[int, ...]:
        """Return the shape of a state tensor of ``parameter``."""
        return () if state == "step" else parameter.shape


@dataclass(frozen=True, slots=True)
class OptimizerKernel:
    """A kernel of the gradnorm or opt section with the symbols that it is bound to."""

    kernel: KernelGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def check_optimizers(groups: tuple[OptimizerGroup, ...], parameters: Mapping[str, Value]) -> None:
    """Check that each parameter exists and belongs to one group.

    Raises:
        CompileError: a parameter is missing or in two groups.
    """
    owner: dict[str, str] = {}
    for group in groups:
        for name in group.parameters:
            if name not in parameters:
                raise CompileError(f"optimizer {group.label} updates {name!r}, which the model does not have")
            if name in owner:
                raise CompileError(f"parameter {name!r} is in two optimizers: {owner[name]} and {group.label}")
            owner[name] = group.label


def build_gradnorm(
    groups: Sequence[OptimizerGroup], parameters: Mapping[str, Value], gradients: Mapping[str, tuple[str, ...]]
) -> OptimizerKernel:
    """Clip the gradients of ``groups`` to their joint norm; the outputs replace them as ``<param>__grad_clipped``."""
    builder = _Builder()
    present = [name for group in groups for name in group.parameters if gradients.get(name)]
    summed = [builder.summed(parameters[name], gradients[name]) for name in present]
    builder.node("clipped", "rdukit.clip_grad_norm", [summed, Special("scalar", f"{groups[0].label}.max_grad_norm")])
    for position in range(len(present)):
        builder.node(f"c{position}", "getitem", [Ref("clipped"), position])
    kernel = builder.kernel(tuple(f"c{position}" for position in range(len(present))))
    return OptimizerKernel(kernel, tuple(builder.bound), tuple(f"{name}__grad_clipped" for name in present))


def build_accumulation(
    groups: Sequence[OptimizerGroup], parameters: Mapping[str, Value], gradients: Mapping[str, tuple[str, ...]],
    flag: Value,
) -> tuple[OptimizerKernel, OptimizerKernel]:  # fmt: skip
    """Build two kernels: one adds gradients up over backwards, the other marks after the optimizer that a new sum
    begins.

    Sums are states ``<param>__grad_accumulated``; ``flag`` [] is 0 if the next backward begins a new sum.
    """
    adding, ending = _Builder(), _Builder()
    present = [name for group in groups for name in group.parameters if gradients.get(name)]
    sums: list[Argument] = [adding.input(replace(parameters[n], name=accumulated_name(n))) for n in present]
    parts: list[Argument] = [adding.summed(parameters[name], gradients[name]) for name in present]
    adding.node("added", "rdukit.accumulate", [sums, parts, adding.input(flag)])
    ending.node("ended", "rdukit.end_accumulation", [ending.input(flag)])
    return (
        OptimizerKernel(adding.kernel(()), tuple(adding.bound), ()),
        OptimizerKernel(ending.kernel(()), tuple(ending.bound), ()),
    )


def accumulated_name(parameter: str) -> str:
    """Return the symbol of a parameter's gradient, summed since the last run of the optimizer."""
    return f"{parameter}__grad_accumulated"


def build_reduce(
    groups: tuple[OptimizerGroup, ...], parameters: Mapping[str, Value], gradients: Mapping[str, tuple[str, ...]]
) -> OptimizerKernel:
    """Average every gradient that the optimizers read over the ranks of a data-parallel run; the outputs replace them.

    Each contribution is averaged separately, so that later sections are the same with and without this one.
    """
    builder = _Builder()
    names = [n for group in groups for n in group.parameters]
    averaged: list[Argument] = [
        builder.input(replace(parameters[name], name=part)) for name in names for part in gradients.get(name, ())
    ]
    builder.node("reduced", "rdukit.all_reduce_mean", [averaged])
    for position in range(len(averaged)):
        builder.node(f"r{position}", "getitem", [Ref("reduced"), position])
    kernel = builder.kernel(tuple(f"r{position}" for position in range(len(averaged))))
    return OptimizerKernel(kernel, tuple(builder.bound), tuple(builder.bound))


def build_chip_gradient(parameter: Value, parts: Sequence[tuple[Value, Sequence[str]]]) -> OptimizerKernel:
    """Build a kernel that concatenates the gradients of ``parts``, rows on several chips, into one.

    Contributions to the same rows are added up in the given order.

    Args:
        parts: rows, as a value of their shape → the symbols of their gradients.
    """
    builder = _Builder()
    rows = [builder.summed(rows, tuple(contributions)) for rows, contributions in parts]
    made = rows[0]
    if len(rows) > 1:
        builder.node("joined", "aten.cat.default", [list(rows), 0])
        made = Ref("joined")
    assert isinstance(made, Ref)
    return OptimizerKernel(builder.kernel((made.name,)), tuple(builder.bound), (gradient_name(parameter.name),))


def gradient_name(parameter: str) -> str:
    """Return the symbol of a parameter's gradient that several chips contribute to."""
    return f"{parameter}__grad"


def build_optimizer(
    group: OptimizerGroup, parameters: Mapping[str, Value], gradients: Mapping[str, tuple[str, ...]],
    exact: bool = False, narrow: Set[str] = frozenset(),
) -> OptimizerKernel:  # fmt: skip
    """Update the parameters and states of ``group`` in place from the gradients' contributions.

    Parameters without a gradient stay unchanged.

    Args:
        exact: round like torch's default update, which is slower.
        narrow: gradients in bf16, each the only contribution.
    """
    builder = _Builder(narrow)
    present = [name for name in group.parameters if gradients.get(name)]
    refs: list[Argument] = [builder.input(parameters[name]) for name in present]
    summed = [builder.summed(parameters[name], gradients[name]) for name in present]
    if group.maximize:
        summed = [builder.negated(gradient) for gradient in summed]
    states: list[Argument] = []
    for position, state in enumerate(STATES[group.kind]):
        column: list[Argument] = []
        for name in present:
            shape = group.state_shape(state, parameters[name])
            column.append(builder.input(replace(parameters[name], name=group.state_names(name)[position], shape=shape)))
        states.append(column)
    scalars: dict[str, Argument] = {
        scalar: Special("scalar", f"{group.label}.{scalar}") for scalar in sorted(group.scalars)
    }
    operator = EXACT_UPDATES.get(group.kind, group.kind) if exact else group.kind
    builder.node("update", f"rdukit.{operator}", [refs, summed, *states], scalars)
    return OptimizerKernel(builder.kernel(()), tuple(builder.bound), ())


class _Builder:
    """Collects a kernel's inputs and nodes. ``narrow``: gradients in bf16."""

    def __init__(self, narrow: Set[str] = frozenset()) -> None:
        self._narrow = narrow
        self.bound: list[str] = []
        self._inputs: list[TensorSpec] = []
        self._nodes: list[KernelNode] = []

    def input(self, value: Value) -> Ref:
        name = f"i{len(self._inputs)}"
        self._inputs.append(packed_spec(name, value.dtype, value.shape))
        self.bound.append(value.name)
        return Ref(name)

    def summed(self, parameter: Value, contributions: tuple[str, ...]) -> Argument:
        """Sum the contributions. A large gradient mostly has one: see ``passes.gradient_outputs``."""
        dtype = "bfloat16" if contributions[0] in self._narrow else parameter.dtype
        total = self.input(replace(parameter, name=contributions[0], dtype=dtype))
        for name in contributions[1:]:
            part = self.input(replace(parameter, name=name))
            added = f"s{len(self._nodes)}"
            self.node(added, "aten.add.Tensor", [total, part])
            total = Ref(added)
        return total

    def negated(self, gradient: Argument) -> Argument:
        name = f"n{len(self._nodes)}"
        self.node(name, "aten.neg.default", [gradient])
        return Ref(name)

    def node(self, name: str, op: str, args: list[Argument], kwargs: Mapping[str, Argument] | None = None) -> None:
        self._nodes.append(KernelNode(name, op, tuple(args), dict(kwargs or {})))

    def kernel(self, outputs: tuple[str, ...]) -> KernelGraph:
        return KernelGraph(tuple(self._inputs), tuple(self._nodes), outputs)
