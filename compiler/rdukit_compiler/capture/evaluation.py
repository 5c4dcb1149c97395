"""Evaluation graph of a training PEF, if the model computes something else in evaluation mode. Pure functions.

The evaluation graph is the same model traced in evaluation mode: dropout is off, and batch norms use their running
statistics. It has forward sections only, over the training graph's inputs, parameters and buffers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rdukit.errors import CompileError
from rdukit.pef.kernel import Argument, Ref, rename_references
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind

#: (x, rate, train): operators that return x if they drop nothing.
_DROPOUTS: Final = frozenset(
    f"aten.{name}.default" for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
_NAME_END: Final = "__evaluation"


def evaluation_name(graph: str) -> str:
    """Return the name of the evaluation graph of ``graph``."""
    return graph + _NAME_END


def name_in_training(name: str) -> str:
    """Return the training graph's name of the evaluation graph's operator ``name``."""
    return name.replace(f"{_NAME_END}__", "__", 1)


def evaluation_graph(trained: ModelGraph, evaluated: ModelGraph) -> ModelGraph | None:
    """Return the graph to compile next to ``trained``; None if the forward sections of ``trained`` compute the same.

    Args:
        evaluated: the same model on the same inputs, traced in evaluation mode under another name, with the training
            graph's names for shared tensors: see ``with_shared_names``.
    Raises:
        CompileError: its outputs, or the tensors that both graphs share, differ from the training graph's.
    """
    if computes_the_same(trained, evaluated):
        return None
    ours, theirs = ([g.values[name] for name in g.outputs] for g in (trained, evaluated))
    if [(v.dtype, v.shape) for v in ours] != [(v.dtype, v.shape) for v in theirs]:
        raise CompileError(
            f"forward returns {_listed(theirs)} in evaluation mode, but {_listed(ours)} in training; return the same "
            "number of tensors, of the same shapes and dtypes, in both"
        )
    for name in trained.values.keys() & evaluated.values.keys():
        one, other = trained.values[name], evaluated.values[name]
        if (one.kind, one.dtype, one.shape) != (other.kind, other.dtype, other.shape):
            raise CompileError(f"tensor {name!r} has another shape or dtype in evaluation mode; give it another name")
    frozen = {name: replace(value, requires_grad=False) for name, value in evaluated.values.items()}
    return replace(evaluated, values=frozen)


def with_shared_names(trained: ModelGraph, evaluated: ModelGraph, constants: Mapping[str, str]) -> ModelGraph:
    """Give ``evaluated`` the names of ``trained`` for constants that are equal, and for dropout rates of the same call.

    Args:
        constants: names in ``evaluated`` → in ``trained``.
    """
    rates = {name: trained.name + name.removeprefix(evaluated.name) for name in evaluated.rates}
    same = {name: ours for name, ours in rates.items() if trained.rates.get(ours) == evaluated.rates[name]}
    names = {**constants, **same}
    if not names:
        return evaluated
    operators = tuple(
        replace(
            operator,
            args=tuple(rename_references(argument, names) for argument in operator.args),
            kwargs={key: rename_references(argument, names) for key, argument in operator.kwargs.items()},
        )
        for operator in evaluated.operators
    )
    values = {names.get(n, n): replace(v, name=names.get(n, n)) for n, v in evaluated.values.items()}
    found = {names.get(name, name): rate for name, rate in evaluated.rates.items()}
    updates = {names.get(buffer, buffer): value for buffer, value in evaluated.updates.items()}
    return replace(evaluated, values=values, operators=operators, updates=updates, rates=found)


def computes_the_same(one: ModelGraph, other: ModelGraph) -> bool:
    """Return whether two traces make the same calls on the same inputs, parameters and buffers, and update buffers
    alike.

    Inactive dropouts are equal, even with different rates.
    """
    if len(one.operators) != len(other.operators) or _ends(one) != _ends(other):
        return False
    #: Value of one graph → value of the other; rates of dropouts match each other, whatever they are.
    names: dict[str, str] = dict(zip(other.rates, one.rates, strict=True)) if len(other.rates) == len(one.rates) else {}
    for ours, theirs in zip(one.operators, other.operators, strict=True):
        if ours.op != theirs.op or len(ours.outputs) != len(theirs.outputs):
            return False
        if _call(ours, {}) != _call(theirs, names) or ours.labels != theirs.labels:
            return False
        names.update(zip(theirs.outputs, ours.outputs, strict=True))
    if one.outputs != tuple(names.get(name, name) for name in other.outputs):
        return False
    return one.updates == {buffer: names.get(value, value) for buffer, value in other.updates.items()}


def _call(operator: Operator, names: Mapping[str, str]) -> str:
    """Return an operator's arguments as text; literals of different types differ."""
    args: list[Argument] = [rename_references(argument, names) for argument in operator.args]
    if operator.op in _DROPOUTS and _drops_nothing(args):
        args = [args[0]]
    kwargs = [(key, rename_references(value, names)) for key, value in sorted(operator.kwargs.items())]
    return repr((args, kwargs))


def _drops_nothing(args: list[Argument]) -> bool:
    return args[2:] == [False] or (not isinstance(args[1], Ref) and args[1] == 0)


def _ends(graph: ModelGraph) -> set[tuple[str, ValueKind, str, tuple[int, ...]]]:
    return {
        (v.name, v.kind, v.dtype, v.shape)
        for v in graph.values.values()
        if v.kind is not ValueKind.OPERATOR and v.name not in graph.rates
    }


def _listed(values: list[Value]) -> str:
    return ", ".join(f"{value.dtype}{list(value.shape)}" for value in values) or "nothing"
