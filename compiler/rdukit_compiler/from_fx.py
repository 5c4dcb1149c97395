"""torch's record of a forward pass → the compiler's model graph.

The record is ATen at the level before decomposition: ``linear``, ``layer_norm``, ``scaled_dot_product_attention``,
the words that fusion rules use.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref
from rdukit_compiler.backend.operators import callable_of, dtype_name, encode, name_of
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind

#: Metadata of a torch node: path of the innermost module that was running, and active directives.
MODULE_META: Final = "rdukit_module"
LABELS_META: Final = "rdukit_labels"

#: Calls that only guard or switch modes while tracing.
_DROPPED: Final = frozenset({
    "aten._assert_tensor_metadata.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default",
})  # fmt: skip


def model_graph_from_fx(
    name: str, recorded: fx.Graph, inputs: Sequence[Value], constants: Mapping[str, str]
) -> ModelGraph:
    """Convert a record.

    Args:
        inputs: one value per placeholder, in order. constants: attribute of the record → name of the buffer value
            that stands for a tensor which the program made outside the trace; listed among ``inputs`` after the
            placeholders' values.
    """
    return _Converter(name, inputs, constants).convert(recorded)


class _Converter:
    def __init__(self, name: str, inputs: Sequence[Value], constants: Mapping[str, str]) -> None:
        self._model = name
        self._inputs = inputs
        self._constants = constants
        self._values: dict[str, Value] = {value.name: value for value in inputs}
        self._operators: list[Operator] = []
        #: torch node → name of the value it stands for now; an in-place operator moves it on.
        self._names: dict[fx.Node, str] = {}
        #: Multi-output torch node → names of its values.
        self._tuples: dict[fx.Node, tuple[str, ...]] = {}
        self._used: dict[str, int] = {}

    def convert(self, recorded: fx.Graph) -> ModelGraph:
        outputs: tuple[str, ...] = ()
        placeholders = iter(self._inputs)
        for node in recorded.nodes:
            if node.op == "placeholder":
                self._names[node] = next(placeholders).name
            elif node.op == "get_attr":
                self._names[node] = self._constants[str(node.target)]
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = tuple(self._output(item) for item in node.args[0])
            else:
                raise UnsupportedOperator(f"the trace has a {node.op} node {node.name!r}, which cannot be compiled")
        return ModelGraph(self._model, self._values, tuple(self._operators), outputs)

    def _call(self, node: fx.Node) -> None:
        if node.target is torch._C._set_grad_enabled or str(node.target) in _DROPPED:
            if node.args and isinstance(node.args[0], fx.Node) and node.args[0] in self._names:
                self._names[node] = self._names[node.args[0]]
            return
        op = self._op_of(node)
        if op == "getitem":
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int)
            self._names[node] = self._tuples[source][index]
            return
        args = tuple(encode(a, self._name_of_value) for a in node.args)
        kwargs = {k: encode(v, self._name_of_value) for k, v in node.kwargs.items()}
        mutated = self._mutated(node)
        self._add(node, op if mutated is None else self._functional(op, node), args, kwargs)
        if mutated is not None:
            self._names[mutated] = self._names[node]

    def _op_of(self, node: fx.Node) -> str:
        try:
            return name_of(node.target)
        except UnsupportedOperator as cause:
            module = node.meta.get(MODULE_META) or "forward"
            raise UnsupportedOperator(f"in module {module!r}: {cause.message}") from cause

    def _mutated(self, node: fx.Node) -> fx.Node | None:
        """The value that an in-place operator overwrites."""
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable or not node.args or not isinstance(node.args[0], fx.Node):
            return None
        return node.args[0]

    def _functional(self, op: str, node: fx.Node) -> str:
        """``aten.relu_.default`` → ``aten.relu.default``, where torch has it and no view is overwritten."""
        namespace, base, overload = op.split(".")
        candidate = f"{namespace}.{base.rstrip('_')}.{overload}"
        target = node.args[0]
        module = node.meta.get(MODULE_META) or "forward"
        if isinstance(target, fx.Node) and self._values[self._names[target]].kind is not ValueKind.OPERATOR:
            raise UnsupportedOperator(
                f"in module {module!r}: {base} overwrites {self._names[target]!r}; a graph's inputs and parameters "
                "cannot be overwritten in forward: use the operator without the underscore"
            )
        try:
            callable_of(candidate)
        except UnsupportedOperator:
            raise UnsupportedOperator(
                f"in module {module!r}: {base} overwrites its input and has no form that does not"
            ) from None
        return candidate

    def _add(self, node: fx.Node, op: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        op_type = op.split(".")[1]
        module = str(node.meta.get(MODULE_META, ""))
        name = self._unique("__".join(filter(None, (self._model, module.replace(".", "__"), _label(op_type)))))
        made = node.meta["val"]
        tensors = list(made) if isinstance(made, list | tuple) else [made]
        names = tuple(f"{name}__outputs__{position}" for position in range(len(tensors)))
        for value_name, tensor in zip(names, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise UnsupportedOperator(
                    f"in module {module or 'forward'!r}: {op_type} gives a Python value that depends on data; "
                    "control flow and shapes cannot depend on data"
                )
            shape = tuple(map(int, tensor.shape))
            self._values[value_name] = Value(value_name, ValueKind.OPERATOR, dtype_name(tensor.dtype), shape)
        labels = dict(node.meta.get(LABELS_META, {}))
        self._operators.append(Operator(name, op, op_type, args, kwargs, names, module, labels))
        if isinstance(made, list | tuple):
            self._tuples[node] = names
        else:
            self._names[node] = names[0]

    def _output(self, item: Any) -> str:
        """An output must be a value of its own: an input that is returned as it is gets copied."""
        if not isinstance(item, fx.Node):
            raise UnsupportedOperator(f"forward returns {item!r}; it may return tensors, and tuples or lists of them")
        name = self._names[item]
        if self._values[name].kind is ValueKind.OPERATOR:
            return name
        copy = self._unique(f"{self._model}__{_label('clone')}")
        source = self._values[name]
        value = Value(f"{copy}__outputs__0", ValueKind.OPERATOR, source.dtype, source.shape)
        self._values[value.name] = value
        self._operators.append(Operator(copy, "aten.clone.default", "clone", (Ref(name),), {}, (value.name,)))
        return value.name

    def _name_of_value(self, item: object) -> str | None:
        return self._names[item] if isinstance(item, fx.Node) else None

    def _unique(self, name: str) -> str:
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return name if count == 0 else f"{name}_{count}"


def _label(op_type: str) -> str:
    """How an operator is called inside names: ``cross_entropy_loss`` → ``crossentropyloss`` (SDK reference 20)."""
    return op_type.strip("_").replace("_", "")
