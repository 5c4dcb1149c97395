"""Writer of a model graph: names operators and values, and infers dtype and shape of values that are not in the
record.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref, parse_operator, references
from rdukit.pef.model import ITEM_BYTES, Dtype
from rdukit_compiler.capture.record_nodes import LABELS_META, LOSS_META, MODULE_META, NAMED_META
from rdukit_compiler.capture.views import DETACH
from rdukit_compiler.ir import Operator, Value, ValueKind
from rdukit_compiler.operators.custom_gradients import CUSTOM_FUNCTION
from rdukit_compiler.operators.naming import callable_of, decode, dtype_name

#: Labels of an operator that keeps its declared precision, and labels of most others.
EXACT: Final[Mapping[str, str]] = {"graphamp": "disabled"}
_UNLABELLED: Final[Mapping[str, str]] = {}
_NO_KWARGS: Final[Mapping[str, Argument]] = {}

#: (x, rate, train): operators whose rate a run may change.
_DROPOUTS: Final = frozenset({"aten.dropout.default", "aten.feature_dropout.default"})


class GraphWriter:
    """Operators and values of a model graph so far.

    Args:
        dtype_readers: paths of modules that looked up a tensor's dtype: see ``model_graph_from_fx``.
    """

    def __init__(self, model: str, inputs: Sequence[Value], dtype_readers: Collection[str]) -> None:
        self._model = model
        self._dtype_readers = frozenset(dtype_readers)
        self.values: dict[str, Value] = {value.name: value for value in inputs}
        self.operators: list[Operator] = []
        #: Buffer that the writer created → the dropout rate in forward.
        self.rates: dict[str, float] = {}
        #: Values through which a gradient may flow, except where the program switched gradients off.
        self.carrying: set[str] = {value.name for value in inputs if value.requires_grad}
        #: Value → the same without a gradient, for calls that were made while gradients were off.
        self._detached: dict[str, str] = {}
        self._used: dict[str, int] = {}

    def emit(self, node: fx.Node, op: str, args: list[Argument], kwargs: Mapping[str, Argument] = _NO_KWARGS) -> str:
        """Add an operator of our own making next to ``node``; returns its value's name."""
        op_type, module = parse_operator(op).word, str(node.meta.get(MODULE_META, ""))
        name = self._named_after(module, op_type)
        value = Value(f"{name}__outputs__0", ValueKind.OPERATOR, *self.infer(op, args, kwargs))
        self.values[value.name] = value
        labels = dict(node.meta.get(LABELS_META, {}))
        self._append(Operator(name, op, op_type, tuple(args), dict(kwargs), (value.name,), module, labels))
        return value.name

    def add(
        self, node: fx.Node, op: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> tuple[str, ...]:  # fmt: skip
        """Add the recorded call of ``node``; returns the names of its values.

        Raises:
            UnsupportedOperator: a result is not a dense tensor of a dtype that the device has.
        """
        op_type = parse_operator(op).word
        module = str(node.meta.get(MODULE_META, ""))
        name = self._named_after(module, op_type)
        made = node.meta["val"]
        tensors = list(made) if isinstance(made, list | tuple) else [made]
        names = tuple(f"{name}__outputs__{position}" for position in range(len(tensors)))
        for value_name, tensor in zip(names, tensors, strict=True):
            if (refusal := _find_refusal(tensor, op_type)) is not None:
                raise UnsupportedOperator(f"in module {module or 'forward'!r}: {refusal}")
            shape = tuple(map(int, tensor.shape))
            self.values[value_name] = Value(value_name, ValueKind.OPERATOR, dtype_name(tensor.dtype), shape)
        labels = dict(node.meta.get(LABELS_META, {}))
        if op in _DROPOUTS:
            args = self._with_rate(f"{name}__p", args)
        if op_type == "embedding_renorm":
            labels |= EXACT  # it overwrites rows of a parameter; the other rows keep every bit
        names_dtype = NAMED_META in node.meta or not self._may_be_looked_up(module)
        self._append(
            Operator(
                name, op, op_type, args, kwargs, names, module, labels, names_dtype=names_dtype,
                is_of_loss=LOSS_META in node.meta,
            )
        )  # fmt: skip
        return names

    def copy(self, name: str, labels: Mapping[str, str] = _UNLABELLED) -> str:
        """Add a copy of value ``name``; returns its name."""
        copy = self._unique(f"{self._model}__{_label('clone')}")
        source = self.values[name]
        value = Value(f"{copy}__outputs__0", ValueKind.OPERATOR, source.dtype, source.shape)
        self.values[value.name] = value
        self.operators.append(
            Operator(copy, "aten.clone.default", "clone", (Ref(name),), {}, (value.name,), labels=labels)
        )
        return value.name

    def without_gradient(self, node: fx.Node, name: str) -> str:
        """Return value ``name`` without a gradient; one operator for all readers."""
        if (known := self._detached.get(name)) is None:
            known = self._detached[name] = self.emit(node, DETACH, [Ref(name)])
        return known

    def infer(self, op: str, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> tuple[Dtype, tuple[int, ...]]:
        """Infer dtype and shape of an operator's result, by running it on tensors without data."""
        tensors = {
            name: torch.empty(self.values[name].shape, dtype=getattr(torch, self.values[name].dtype), device="meta")
            for name in references([*args, *kwargs.values()])
        }
        if op == CUSTOM_FUNCTION:
            ((made,), *_) = (decode(a, tensors) for a in args)
        else:
            given = {key: decode(value, tensors) for key, value in kwargs.items()}
            made = callable_of(op)(*(decode(a, tensors) for a in args), **given)
        return dtype_name(made.dtype), tuple(map(int, made.shape))

    def _append(self, operator: Operator) -> None:
        self.operators.append(operator)
        if operator.op != DETACH and not self.carrying.isdisjoint(operator.inputs):
            self.carrying.update(n for n in operator.outputs if getattr(torch, self.values[n].dtype).is_floating_point)

    def _may_be_looked_up(self, module: str) -> bool:
        """Return whether a dtype argument in ``module`` may have been looked up on a tensor."""
        parts = module.split(".") if module else []
        above = (".".join(parts[:count]) for count in range(len(parts) + 1))
        return not self._dtype_readers.isdisjoint(above)

    def _with_rate(self, symbol: str, args: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Read an active dropout's rate from a buffer [] f32, so that a run can change it. 0 and 1 are compiled in."""
        x, rate, *rest = args
        if rest != [True] or not isinstance(rate, float) or not 0 < rate < 1:
            return args
        self.values[symbol] = Value(symbol, ValueKind.BUFFER, "float32", ())
        self.rates[symbol] = rate
        return (x, Ref(symbol), *rest)

    def _named_after(self, module: str, op_type: str) -> str:
        return self._unique("__".join(filter(None, (self._model, module.replace(".", "__"), _label(op_type)))))

    def _unique(self, name: str) -> str:
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return name if count == 0 else f"{name}_{count}"


def _find_refusal(result: Any, op_type: str) -> str | None:
    """Explain why a graph cannot hold ``result``; None if it can."""
    if isinstance(result, list | tuple):
        return (
            f"{op_type} returns a list of tensors within a tuple, which a graph cannot hold: compute it outside of "
            "forward"
        )
    if result is None:
        return (
            f"one of the results of {op_type} is None, which a graph cannot hold: give its layer a weight and a bias, "
            "or use simpler operators"
        )
    if not isinstance(result, torch.Tensor):
        return f"{op_type} returns a Python value that depends on data; control flow and shapes cannot depend on data"
    if result.layout is not torch.strided:
        return (
            f"{op_type} returns a tensor of layout {result.layout}, but the RDU has only dense tensors; use a dense "
            "tensor with a mask"
        )
    if (dtype := dtype_name(result.dtype)) not in ITEM_BYTES:
        return f"{op_type} returns a tensor of dtype {dtype}; the RDU takes {', '.join(ITEM_BYTES)}"
    return None


def _label(op_type: str) -> str:
    """Return an operator's name inside names: ``cross_entropy_loss`` → ``crossentropyloss`` (SDK reference 20)."""
    return op_type.strip("_").replace("_", "")
