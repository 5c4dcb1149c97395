"""Converts torch's record of a forward pass into the compiler's model graph.

The record has ATen's operators before decomposition, such as ``linear`` and ``scaled_dot_product_attention``, to which
fusion rules refer.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from rdukit.errors import CompileError, RdukitError, UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref, Special, parse_operator
from rdukit.pef.model import ITEM_BYTES
from rdukit_compiler.capture.custom_functions import ENTRY, extract_backward
from rdukit_compiler.capture.graph_writer import EXACT, GraphWriter
from rdukit_compiler.capture.mutation import (
    Aliases,
    functional_form,
    keeps_dtype,
    overwritten_argument,
    refuse_view_of_constant,
)  # fmt: skip
from rdukit_compiler.capture.record_nodes import (
    BACKWARD_META,
    FOLLOWED_META,
    NO_GRAD_META,
    gives_itself,
    module_of,
    returns_nothing,
    shares_memory,
    turns_a_tensor,
)
from rdukit_compiler.capture.views import (
    DETACH,
    Emit,
    asks_for_places,
    check_scattered,
    look_up_places,
    scatter_places,
    show_again,
    shown_places,
)
from rdukit_compiler.ir import ModelGraph, Value, ValueKind
from rdukit_compiler.operators.custom_gradients import CUSTOM_FUNCTION, backward_text, pass_on_text
from rdukit_compiler.operators.naming import aten_word, dtype_name, encode, find_functional, name_of
from rdukit_compiler.operators.supported import REFUSED
from rdukit_compiler.patterns.topology import move_copies, reads_after
from rdukit_compiler.torch_private import set_grad_enabled

logger = logging.getLogger(__name__)

#: Calls that only guard, switch modes or mark a profile while tracing.
_DROPPED: Final = frozenset({
    "aten._assert_tensor_metadata.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default",
    "profiler._record_function_enter_new.default", "profiler._record_function_enter.default",
    "profiler._record_function_exit.default", "profiler._record_function_exit._RecordFunction",
})  # fmt: skip

_BROADCAST: Final = "aten.broadcast_tensors.default"

#: (x, weight, bias, mean, variance, train, momentum, …): operators that update mean and variance when they train.
_KEEP_STATISTICS: Final = frozenset({"aten.batch_norm.default", "aten.instance_norm.default"})


def model_graph_from_fx(
    name: str, recorded: fx.Graph, inputs: Sequence[Value], constants: Mapping[str, str], updated: Sequence[str] = (),
    dtype_readers: Collection[str] = ("",),
) -> ModelGraph:  # fmt: skip
    """Convert a record.

    Args:
        inputs: one value per placeholder, in order. constants: attribute of the record → name of the buffer value for a
            tensor that the program made outside the trace. These values follow the placeholders' in ``inputs``.
            updated: buffers whose new values are the record's last outputs.
        dtype_readers: paths of modules that looked up a tensor's dtype: in these modules and below, a dtype argument
            may be that tensor's.
    """
    return _Converter(name, inputs, constants, dtype_readers).convert(recorded, updated)


class _Converter:
    def __init__(
        self, name: str, inputs: Sequence[Value], constants: Mapping[str, str], dtype_readers: Collection[str]
    ) -> None:  # fmt: skip
        self._model = name
        self._graph = GraphWriter(name, inputs, dtype_readers)
        self._inputs = inputs
        self._constants = constants
        #: Current value of each torch node; an in-place operator changes it.
        self._aliases = Aliases(self._show_again)
        #: Graph input → its node in the record.
        self._roots: dict[str, fx.Node] = {}
        #: Buffer → the value that forward leaves in it.
        self._updates: dict[str, str] = {}
        #: Multi-output torch node → names of its values.
        self._tuples: dict[fx.Node, tuple[str, ...]] = {}
        #: Whether the call that is being converted was made while gradients were off.
        self._is_untracked = False

    def convert(self, recorded: fx.Graph, updated: Sequence[str]) -> ModelGraph:
        for value in self._inputs:
            if value.dtype not in ITEM_BYTES:
                legal = ", ".join(ITEM_BYTES)
                raise UnsupportedOperator(f"the {value.kind} {value.name!r} has dtype {value.dtype}; expected {legal}")
        outputs: tuple[str, ...] = ()
        placeholders = iter(self._inputs)
        for node in recorded.nodes:
            if node.op == "placeholder":
                self._define_input(node, next(placeholders).name)
            elif node.op == "get_attr":
                self._define_constant(node)
            elif node.op == "call_function":
                self._call_or_refuse(node)
            elif node.op == "output":
                leaving: list[Any] = list(node.args[0])
                returned, assigned = leaving[: len(leaving) - len(updated)], leaving[len(leaving) - len(updated) :]
                for item in returned:
                    outputs = (*outputs, self._output(item, outputs))
                self._assign_buffers(dict(zip(updated, assigned, strict=True)))
            else:
                raise UnsupportedOperator(f"the trace has a {node.op} node {node.name!r}, which cannot be compiled")
        for value in self._inputs:
            if self._graph.values[value.name] is not value:
                raise CompileError(
                    f"the {value.kind} {value.name!r} has the name that an operator's output gets; give it another name"
                )
        updates = {buffer: self._update_of(buffer, value, outputs) for buffer, value in self._updates.items()}
        if any(self._graph.values[buffer].kind is ValueKind.PARAMETER for buffer in updates):
            self._drop_unread_detach({*outputs, *updates.values()})
        operators = move_copies(self._graph.operators, updates)
        return ModelGraph(self._model, self._graph.values, operators, outputs, updates, self._graph.rates)

    def _drop_unread_detach(self, kept: set[str]) -> None:
        """Drop unread detaches, so that only the operator that makes a parameter's new value reads the old one."""
        for operator in reversed(list(self._graph.operators)):
            if operator.op != DETACH:
                continue
            (made,) = operator.outputs
            if made not in kept and all(made not in other.inputs for other in self._graph.operators):
                self._graph.operators.remove(operator)
                del self._graph.values[made]

    def _assign_buffers(self, assigned: Mapping[str, fx.Node]) -> None:
        """Update buffers to which forward assigned another tensor; its own tensor changes nothing."""
        for buffer, node in assigned.items():
            value = self._aliases.name(node)
            self._updates.pop(buffer, None)
            if value != buffer:
                self._updates[buffer] = value

    def _define_input(self, node: fx.Node, name: str) -> None:
        self._roots[name] = node
        self._aliases.define(node, name)

    def _define_constant(self, node: fx.Node) -> None:
        """Define a tensor from outside, or one of the graph that ``.data`` returned or autograd kept for a gradient."""
        if (symbol := self._constants.get(str(node.target))) is not None:
            self._define_input(node, symbol)
            return
        if BACKWARD_META in node.meta:
            return
        if (source := self._aliases.find_same(node)) is None:
            raise UnsupportedOperator(
                "forward uses a tensor that none of its operators computed. Either it was computed from a parameter "
                "outside the trace: compute it in forward. Or autograd keeps it for a gradient that forward requests, "
                "as of batch norm and dropout: write out that gradient, or differentiate without them"
            )
        if node.meta.get(FOLLOWED_META):
            self._aliases.identify(node, source)
        else:
            self._aliases.define(node, self._graph.emit(node, DETACH, [Ref(self._aliases.name(source))]), source)

    def _call_or_refuse(self, node: fx.Node) -> None:
        try:
            self._call(node)
        except RdukitError:
            raise
        except Exception as cause:
            raise CompileError(
                f"in module {module_of(node)!r}: {node.target} cannot be compiled: {type(cause).__name__}: {cause}"
            ) from cause

    def _call(self, node: fx.Node) -> None:
        if BACKWARD_META in node.meta:
            return  # its custom function converts it: see ``_custom``
        self._is_untracked = NO_GRAD_META in node.meta and not gives_itself(node)
        if node.target is set_grad_enabled or str(node.target) in _DROPPED:
            if node.args and isinstance(node.args[0], fx.Node) and self._aliases.knows(node.args[0]):
                self._aliases.identify(node, node.args[0])
            return
        if node.target in {_enter_autocast, _exit_autocast}:
            self._check_autocast(node)
            return
        if "val" not in node.meta and not node.users and not returns_nothing(node):
            return  # torch refused this call while tracing, and repeated it with valid operands
        op = self._op_of(node)
        if op in REFUSED:
            raise UnsupportedOperator(f"in module {module_of(node)!r}: {REFUSED[op]}")
        if "out" in node.kwargs:
            raise UnsupportedOperator(
                f"in module {module_of(node)!r}: {parse_operator(op).word} has out=, which the RDU does not support; "
                "use the operator's result"
            )
        if op == _BROADCAST:
            return  # its results are converted separately: see ``_broadcast``
        if op == ENTRY:
            (source,) = node.args
            assert isinstance(source, fx.Node)
            self._aliases.define(node, self._aliases.name(source))
            return
        if op == CUSTOM_FUNCTION:
            self._custom(node)
            return
        if op == "getitem":
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int)
            if str(source.target) == _BROADCAST:
                tensors = source.args[0]
                assert isinstance(tensors, list | tuple)
                self._broadcast(node, tensors[index])
                return
            first = source.args[0] if source.args else None
            if isinstance(first, list | tuple) and str(source.target) == CUSTOM_FUNCTION:
                self._aliases.tie(node, first[index])  # forward may have assigned a view
            self._aliases.define(node, self._tuples[source][index], first)
            return
        if asks_for_places(node):
            self._show_places(node)
            return
        if op == "aten.as_strided_scatter.default":
            value, source = (self._named(n) for n in node.args[:2])
            self._aliases.define(node, scatter_places(node, value, source, self._emitting(node)))
            return
        check_scattered(node)
        args = tuple(encode(a, self._name_of_value) for a in node.args)
        kwargs = {k: encode(v, self._name_of_value) for k, v in node.kwargs.items()}
        if (mutated := self._mutated(node)) is not None:
            self._overwrite(node, mutated, op, args, kwargs)
            return
        if returns_nothing(node):
            raise UnsupportedOperator(
                f"in module {module_of(node)!r}: operator {op!r} returns nothing, so no graph can hold it; leave it "
                "out of forward, or let it return its result"
            )
        if op in _KEEP_STATISTICS:
            args = self._without_statistics(node, args)
        self._add(node, op, args, kwargs)

    def _broadcast(self, node: fx.Node, source: Any) -> None:
        """Convert one result of ``broadcast_tensors``, as losses call it: the tensor itself, or an expanded view."""
        shape: list[Argument] = [int(size) for size in node.meta["val"].shape]
        if list(source.meta["val"].shape) == shape:
            self._aliases.identify(node, source)
            return
        name = self._graph.emit(node, "aten.expand.default", [Ref(self._aliases.name(source)), shape])
        self._aliases.define(node, name, source)

    def _custom(self, node: fx.Node) -> None:
        """Tie the results of a custom function's forward to the gradient that its backward returns."""
        given: tuple[Any, ...] = node.args
        outputs, entries, gradients, incoming, number, refusal = given
        saved: list[Argument] = []
        text = ""
        if not refusal:
            graph, values, read = extract_backward(node.graph, number, gradients, incoming, self._constants)
            saved = [Ref(self._aliases.name(value)) for value in read]
            converted = model_graph_from_fx("backward", graph, values, {})
            found = iter(converted.outputs)
            names = [None if gradient is None else next(found) for gradient in gradients]
            text = backward_text(converted, [value.name for value in values], names)
        tied: list[Argument] = [[Ref(self._aliases.name(n)) for n in nodes] for nodes in (outputs, entries)]
        self._add(node, CUSTOM_FUNCTION, (*tied, saved, text, str(refusal)), {})

    def _keep_gradient(self, node: fx.Node, value: str, former: str) -> str:
        """Give ``value`` the gradient of ``former``, as autograd does where ``.data`` was overwritten."""
        if former not in self._graph.carrying:
            return self._graph.without_gradient(node, value) if value in self._graph.carrying else value
        passed = pass_on_text(self._graph.values[former])
        return self._graph.emit(node, CUSTOM_FUNCTION, [[Ref(value)], [Ref(former)], [], passed, ""])

    def _pass_zero(self, node: fx.Node, value: str, former: str) -> str:
        """Replace all elements of ``former`` by ``value``; the gradient of ``former`` is zero, as in torch."""
        shape: list[Argument] = list(self._graph.values[former].shape)
        if not shape:
            former, value = (
                self._graph.emit(node, "aten.reshape.default", [Ref(name), [1]]) for name in (former, value)
            )
        size = shape[0] if shape else 1
        passed = self._graph.emit(node, "aten.slice_scatter.default", [Ref(former), Ref(value), 0, 0, size])
        return passed if shape else self._graph.emit(node, "aten.reshape.default", [Ref(passed), shape])

    def _check_autocast(self, node: fx.Node) -> None:
        """Skip a block that disables autocast; refuse one that enables it, which would change dtypes unrecorded."""
        entered = node.args[0] if node.target is _exit_autocast else node
        assert isinstance(entered, fx.Node)
        if entered.args[2]:
            raise UnsupportedOperator(
                f"in module {module_of(node)!r}: torch.autocast cannot be compiled; the device "
                "computes in bf16 anyway, so leave it out, or convert with .to(…) where forward needs another dtype"
            )

    def _overwrite(
        self, node: fx.Node, mutated: fx.Node, op: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> None:
        """Write an in-place operator as a functional one; the overwritten tensor stands for the result from now on."""
        root = self._aliases.root(mutated)
        owner = self._aliases.name(root)
        base = parse_operator(op).word
        what = f"in module {module_of(node)!r}: {base}"
        if base != "detach_" and turns_a_tensor(node) and self._graph.values[owner].kind is ValueKind.OPERATOR:
            self._add(node, _functional(op, what), args, kwargs)  # from now on the tensor is this view
            return
        hooked = next((name for name, n in self._roots.items() if n is not root and shares_memory(n, root)), None)
        self._check_owner(self._graph.values[owner], hooked, what)
        if self._graph.values[owner].kind is ValueKind.PARAMETER:
            args = (Ref(owner), *args[1:])  # the stored parameter, not its detached copy
        arguments = {"target": args[0], "source": args[1] if len(args) > 1 else None}
        dtype = dtype_name(mutated.meta["val"].dtype)
        if (form := functional_form(node, op, arguments)) is not None:
            value = self._graph.emit(node, *form)
            if self._aliases.is_root(mutated) and self._named(mutated) in self._graph.carrying:
                value = self._pass_zero(node, value, self._named(mutated))
        else:
            form_of = _functional(op, what)
            if keeps_dtype(node, op) or self._graph.infer(form_of, args, kwargs)[0] == dtype:
                self._add(node, form_of, args, kwargs)
                value = self._aliases.name(node)
            else:
                value = self._graph.emit(node, form_of, list(args), kwargs)
        if self._graph.values[value].dtype != dtype:  # the overwritten tensor keeps its dtype
            value = self._graph.emit(node, "aten.to.dtype", [Ref(value), Special("dtype", dtype)])
        self._move(node, mutated, value, what)
        self._aliases.identify(node, mutated)

    def _check_owner(self, owner: Value, hooked: str | None, what: str) -> None:
        """Refuse to overwrite a parameter; for an input, log that a copy is overwritten instead.

        ``F.embedding`` alone may overwrite a parameter: with ``max_norm`` it shortens the rows that it looks up.
        """
        if hooked is not None or (owner.kind is ValueKind.PARAMETER and not what.endswith(": embedding_renorm_")):
            raise UnsupportedOperator(
                f"{what} overwrites {hooked or owner.name!r}; parameters cannot be overwritten in forward: use "
                "the operator without the underscore, or assign the new value before session.run. State that forward "
                "keeps from run to run, such as a moving average of weights, belongs in a buffer (register_buffer)"
            )
        if owner.kind is not ValueKind.INPUT:
            return
        if owner.requires_grad and not self._is_untracked:
            raise UnsupportedOperator(
                f"{what} overwrites input {owner.name!r}, which requires a gradient; torch refuses this, too: use the "
                "operator without the underscore"
            )
        logger.warning(
            "[warning Samba]: %s overwrites input %r: the device overwrites a copy, and the program's own tensor keeps "
            "its values; return the new value from forward where the program needs it", what, owner.name,
        )  # fmt: skip

    def _move(self, node: fx.Node, target: fx.Node, value: str, what: str) -> None:
        """Make ``target`` stand for ``value`` from now on; a buffer, or its base, is updated."""
        root = self._aliases.root(target)
        moved = self._aliases.overwrite(
            target, value, self._emitting(node), what,
            lambda new, former: self._keep_gradient(node, new, former), self._is_untracked,
        )  # fmt: skip
        buffer = next((name for name, node in self._roots.items() if node is root), None)
        if buffer is None:
            return refuse_view_of_constant(root, what)
        kind, was_checked = self._graph.values[buffer].kind, what.endswith("_")  # a write that ``_check_owner`` allowed
        if kind is ValueKind.INPUT and was_checked:
            return
        if kind is not ValueKind.BUFFER and not was_checked:
            raise UnsupportedOperator(
                f"{what} overwrites {buffer!r}, which is an input or a parameter of the graph; give it a buffer of the "
                "model (register_buffer)"
            )
        if moved.root is not root:
            raise UnsupportedOperator(f"{what} overwrites buffer {buffer!r} through a view; overwrite all of it")
        # A parameter gets the computed value, not autograd's copy of it, which may be rounded.
        self._updates[buffer] = value if self._graph.values[buffer].kind is ValueKind.PARAMETER else moved.value

    def _update_of(self, buffer: str, value: str, outputs: tuple[str, ...]) -> str:
        """Return the value that a section writes into a buffer: a copy, if ``value`` has other readers."""
        read = {name for operator in self._graph.operators for name in operator.inputs}
        shared = list(self._updates.values()).count(value) > 1
        if value in read or value in outputs or shared or self._graph.values[value].kind is not ValueKind.OPERATOR:
            return self._graph.copy(value, EXACT if self._graph.values[buffer].kind is ValueKind.PARAMETER else {})
        maker = next(number for number, operator in enumerate(self._graph.operators) if value in operator.outputs)
        is_read_later = reads_after(self._graph.operators[maker + 1 :], self._graph.operators, buffer)
        return self._graph.copy(value) if is_read_later else value

    def _without_statistics(self, node: fx.Node, args: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Update running statistics of norms by separate operators: the record does not show that norms write them.

        x [N, C, …]: mean and unbiased variance over all but axis 1 move the statistics [C] by ``momentum``; for an
        instance norm, the average over N of each instance's.
        """
        x, _, _, mean, variance, training, momentum = node.args[:7]
        if not (training and isinstance(mean, fx.Node) and isinstance(variance, fx.Node)):
            return args
        assert isinstance(x, fx.Node) and isinstance(momentum, float)
        word = aten_word(node.target)
        by_instance = word == "instance_norm"
        dims: list[Argument] = [d for d in range(2 if by_instance else 0, x.meta["val"].dim()) if d != 1]
        seen = self._graph.emit(node, DETACH, [Ref(self._aliases.name(x))])
        exact = self._graph.emit(
            node, "aten.to.dtype", [Ref(seen), Special("dtype", dtype_name(mean.meta["val"].dtype))]
        )
        for statistic, found in (
            (mean, self._graph.emit(node, "aten.mean.dim", [Ref(exact), dims])),
            (variance, self._graph.emit(node, "aten.var.dim", [Ref(exact), dims])),
        ):
            if by_instance:
                found = self._graph.emit(node, "aten.mean.dim", [Ref(found), [0]])
            old = self._aliases.name(statistic)
            moved = self._graph.emit(node, "aten.lerp.Scalar", [Ref(old), Ref(found), momentum])
            self._move(node, statistic, moved, word)
        return (*args[:3], None, None, *args[5:])

    def _show_again(self, view: fx.Node, base: fx.Node, base_value: str) -> str | None:
        """Return a view of the overwritten tensor's current value.

        Return None for a view that was taken while gradients were off, if the tensor carries a gradient: autograd must
        not follow it.
        """
        is_untracked = NO_GRAD_META in view.meta and not gives_itself(view)
        if asks_for_places(view):  # it may show more than its operand, which decides whether a gradient flows
            is_untracked = is_untracked or self._named(view.args[0]) not in self._graph.carrying
        if is_untracked and base_value in self._graph.carrying:
            return None
        return show_again(view, base, base_value, self._name_of_value, self._emitting(view))

    def _show_places(self, node: fx.Node) -> None:
        """Convert ``as_strided``, of its operand or of the tensor that owns the operand's memory."""
        operand = node.args[0]
        assert isinstance(operand, fx.Node)
        carries = self._named(operand) in self._graph.carrying
        shown = shown_places(node, self._aliases.root(operand), carries)
        value = self._named(shown)
        if value in self._graph.carrying and not carries:
            value = self._graph.without_gradient(node, value)
        self._aliases.define(node, look_up_places(node, shown, value, self._emitting(node)), shown)

    def _emitting(self, node: fx.Node) -> Emit:
        return partial(self._graph.emit, node)

    def _named(self, item: object) -> str:
        name = self._name_of_value(item)
        assert name is not None
        return name

    def _op_of(self, node: fx.Node) -> str:
        try:
            return name_of(node.target)
        except UnsupportedOperator as cause:
            raise UnsupportedOperator(f"in module {module_of(node)!r}: {cause.message}") from cause

    def _mutated(self, node: fx.Node) -> fx.Node | None:
        """Return the value that an in-place operator overwrites: see ``overwritten_argument``."""
        try:
            return overwritten_argument(node)
        except UnsupportedOperator as cause:
            raise UnsupportedOperator(f"in module {module_of(node)!r}: {cause.message}") from cause

    def _add(self, node: fx.Node, op: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        names = self._graph.add(node, op, args, kwargs)
        if isinstance(node.meta["val"], list | tuple):
            self._tuples[node] = names
        else:
            self._aliases.define(node, names[0], node.args[0] if node.args else None)

    def _output(self, item: Any, earlier: tuple[str, ...]) -> str:
        """Return an output as a value of its own: copy a returned input, and a value that is returned twice.

        Each output starts backward with a gradient of its own.
        """
        if not isinstance(item, fx.Node):
            raise UnsupportedOperator(f"forward returns {item!r}; expected tensors, or tuples or lists of them")
        name = self._aliases.name(item)
        is_own = self._graph.values[name].kind is ValueKind.OPERATOR and name not in earlier
        return name if is_own else self._graph.copy(name)

    def _name_of_value(self, item: object) -> str | None:
        if not isinstance(item, fx.Node):
            return None
        name = self._aliases.name(item)
        return self._graph.without_gradient(item, name) if self._is_untracked and name in self._graph.carrying else name


def _functional(op: str, what: str) -> str:
    """Return the functional operator that computes the result of the in-place operator ``op``."""
    if (found := find_functional(op)) is None:
        raise UnsupportedOperator(f"{what} overwrites its input, and no variant of it returns a new tensor")
    return found
