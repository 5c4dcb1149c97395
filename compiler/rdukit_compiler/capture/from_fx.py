"""torch's record of a forward pass → the compiler's model graph.

The record is ATen at the level before decomposition: ``linear``, ``layer_norm``, ``scaled_dot_product_attention``,
the words that fusion rules use.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from rdukit.errors import CompileError, RdukitError, UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref, Special, references
from rdukit.pef.model import ITEM_BYTES
from rdukit_compiler.capture.custom_functions import ENTRY
from rdukit_compiler.capture.marks import (
    BACKWARD_META,
    FOLLOWED_META,
    LOSS_META,
    NAMED_META,
    NO_GRAD_META,
)
from rdukit_compiler.capture.mutation import (
    Aliases,
    functional_form,
    keeps_dtype,
    overwritten_argument,
    shares_memory,
)
from rdukit_compiler.capture.views import (
    Emit,
    asks_for_places,
    check_scattered,
    look_up_places,
    scatter_places,
    show_again,
    shown_places,
)
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.custom_gradients import CUSTOM_FUNCTION, backward_text, pass_on_text
from rdukit_compiler.operators.naming import callable_of, decode, dtype_name, encode, find_functional, name_of
from rdukit_compiler.operators.supported import REFUSED
from rdukit_compiler.patterns.topology import move_copies, reads_after

logger = logging.getLogger(__name__)

#: Metadata of a torch node: path of the innermost module that was running, and active directives.
MODULE_META: Final = "rdukit_module"
LABELS_META: Final = "rdukit_labels"

#: Calls that only guard, switch modes or mark a profile while tracing.
_DROPPED: Final = frozenset({
    "aten._assert_tensor_metadata.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default",
    "profiler._record_function_enter_new.default", "profiler._record_function_enter.default",
    "profiler._record_function_exit.default", "profiler._record_function_exit._RecordFunction",
})  # fmt: skip

_DETACH: Final = "aten.detach.default"
#: Operators beside dropouts that may give the tensor itself, with its gradient, also while gradients are off.
_IDENTITIES: Final = frozenset(
    "to type_as contiguous positive flatten sum_to_size real conj conj_physical resolve_conj resolve_neg atleast_1d "
    "atleast_2d atleast_3d adjoint to_dense dequantize".split()
)
_BROADCAST: Final = "aten.broadcast_tensors.default"

#: Labels of an operator that keeps its declared precision, and of most others.
_EXACT: Final = {"graphamp": "disabled"}
_UNLABELLED: Final[Mapping[str, str]] = {}
_NO_KWARGS: Final[Mapping[str, Argument]] = {}

#: (x, weight, bias, mean, variance, train, momentum, …): operators that update mean and variance when they train.
_KEEP_STATISTICS: Final = frozenset({"aten.batch_norm.default", "aten.instance_norm.default"})

#: (x, rate, train): operators whose rate a run may change.
_DROPOUTS: Final = frozenset({"aten.dropout.default", "aten.feature_dropout.default"})


def model_graph_from_fx(
    name: str, recorded: fx.Graph, inputs: Sequence[Value], constants: Mapping[str, str], updated: Sequence[str] = (),
    dtype_readers: Collection[str] = ("",),
) -> ModelGraph:  # fmt: skip
    """Convert a record.

    Args:
        inputs: one value per placeholder, in order. constants: attribute of the record → name of the buffer value
            that stands for a tensor which the program made outside the trace; listed among ``inputs`` after the
            placeholders' values. updated: buffers whose new values are the record's last outputs.
        dtype_readers: paths of modules that looked up a tensor's dtype: there and in the modules below, a dtype that
            is passed may be that tensor's.
    """
    return _Converter(name, inputs, constants, dtype_readers).convert(recorded, updated)


class _Converter:
    def __init__(
        self, name: str, inputs: Sequence[Value], constants: Mapping[str, str], dtype_readers: Collection[str]
    ) -> None:  # fmt: skip
        self._model = name
        self._dtype_readers = frozenset(dtype_readers)
        self._inputs = inputs
        self._constants = constants
        self._values: dict[str, Value] = {value.name: value for value in inputs}
        self._operators: list[Operator] = []
        #: What each torch node stands for now; an in-place operator moves it on.
        self._aliases = Aliases(self._show_again)
        #: Graph input → its node in the record.
        self._roots: dict[str, fx.Node] = {}
        #: Buffer → the value that forward leaves in it.
        self._updates: dict[str, str] = {}
        #: Multi-output torch node → names of its values.
        self._tuples: dict[fx.Node, tuple[str, ...]] = {}
        self._used: dict[str, int] = {}
        #: Buffer of our own making → the dropout rate that forward asked for.
        self._rates: dict[str, float] = {}
        #: Values through which a gradient may flow; it ends where the program switched gradients off.
        self._carrying: set[str] = {value.name for value in inputs if value.requires_grad}
        #: Value → the same without a gradient, for calls that were made while gradients were off.
        self._detached: dict[str, str] = {}
        #: Whether the call that is being converted was made while gradients were off.
        self._is_untracked = False

    def convert(self, recorded: fx.Graph, updated: Sequence[str]) -> ModelGraph:
        for value in self._inputs:
            if value.dtype not in ITEM_BYTES:
                legal = ", ".join(ITEM_BYTES)
                raise UnsupportedOperator(
                    f"the {value.kind} {value.name!r} has dtype {value.dtype}; legal on the RDU: {legal}"
                )
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
            if self._values[value.name] is not value:
                raise CompileError(
                    f"the {value.kind} {value.name!r} has the name that an operator's output gets; give it another name"
                )
        updates = {buffer: self._update_of(buffer, value, outputs) for buffer, value in self._updates.items()}
        if any(self._values[buffer].kind is ValueKind.PARAMETER for buffer in updates):
            self._drop_unread_detach({*outputs, *updates.values()})
        operators = move_copies(self._operators, updates)
        return ModelGraph(self._model, self._values, operators, outputs, updates, self._rates)

    def _drop_unread_detach(self, kept: set[str]) -> None:
        """Without them, only the operator that makes a parameter's new value reads the old one."""
        for operator in reversed(list(self._operators)):
            if operator.op != _DETACH:
                continue
            (made,) = operator.outputs
            if made not in kept and all(made not in other.inputs for other in self._operators):
                self._operators.remove(operator)
                del self._values[made]

    def _assign_buffers(self, assigned: Mapping[str, fx.Node]) -> None:
        """Buffers that forward gave another tensor; one that it gave back its own stays as it is."""
        for buffer, node in assigned.items():
            value = self._aliases.name(node)
            self._updates.pop(buffer, None)
            if value != buffer:
                self._updates[buffer] = value

    def _define_input(self, node: fx.Node, name: str) -> None:
        self._roots[name] = node
        self._aliases.define(node, name)

    def _define_constant(self, node: fx.Node) -> None:
        """A tensor from outside, or one of the graph: as ``.data`` gives it, or as autograd keeps it for a gradient."""
        if (symbol := self._constants.get(str(node.target))) is not None:
            self._define_input(node, symbol)
            return
        if BACKWARD_META in node.meta:
            return
        if (source := self._aliases.find_same(node)) is None:
            raise UnsupportedOperator(
                "forward uses a tensor that none of its operators made: one that was made from a parameter outside of "
                "the trace (compute it in forward), or one that autograd keeps for a gradient that forward asks for, "
                "as of batch norm and dropout (write that gradient out, or leave them out of what is differentiated)"
            )
        if node.meta.get(FOLLOWED_META):
            self._aliases.identify(node, source)
        else:
            self._aliases.define(node, self._emit(node, _DETACH, [Ref(self._aliases.name(source))]), source)

    def _call_or_refuse(self, node: fx.Node) -> None:
        try:
            self._call(node)
        except RdukitError:
            raise
        except Exception as cause:
            raise CompileError(
                f"in module {node.meta.get(MODULE_META) or 'forward'!r}: {node.target} cannot be compiled: "
                f"{type(cause).__name__}: {cause}"
            ) from cause

    def _call(self, node: fx.Node) -> None:
        if BACKWARD_META in node.meta:
            return  # with the custom function that it belongs to: see ``_custom``
        self._is_untracked = NO_GRAD_META in node.meta and not _gives_itself(node)
        if node.target is torch._C._set_grad_enabled or str(node.target) in _DROPPED:
            if node.args and isinstance(node.args[0], fx.Node) and self._aliases.knows(node.args[0]):
                self._aliases.identify(node, node.args[0])
            return
        if node.target in {_enter_autocast, _exit_autocast}:
            self._check_autocast(node)
            return
        if "val" not in node.meta and not node.users and not _returns_nothing(node):
            return  # torch refused this call while tracing; it was made again with operands that torch takes
        op = self._op_of(node)
        if op in REFUSED:
            raise UnsupportedOperator(f"in module {_module_of(node)!r}: {REFUSED[op]}")
        if "out" in node.kwargs:
            raise UnsupportedOperator(
                f"in module {node.meta.get(MODULE_META) or 'forward'!r}: {op.split('.')[1]} has out=, which the RDU "
                "does not support; use what the operator returns"
            )
        if op == _BROADCAST:
            return  # each of its results by itself: see ``_broadcast``
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
                self._aliases.tie(node, first[index])  # forward may have given a view
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
        if _returns_nothing(node):
            raise UnsupportedOperator(
                f"in module {_module_of(node)!r}: operator {op!r} returns nothing, so that no graph can hold it; leave "
                "it out of forward, or let it return what it makes"
            )
        if op in _KEEP_STATISTICS:
            args = self._without_statistics(node, args)
        self._add(node, op, args, kwargs)

    def _broadcast(self, node: fx.Node, source: Any) -> None:
        """What ``broadcast_tensors`` makes of one tensor, as losses call it: the tensor itself, or an expanded view."""
        shape: list[Argument] = [int(size) for size in node.meta["val"].shape]
        if list(source.meta["val"].shape) == shape:
            self._aliases.identify(node, source)
            return
        name = self._emit(node, "aten.expand.default", [Ref(self._aliases.name(source)), shape])
        self._aliases.define(node, name, source)

    def _custom(self, node: fx.Node) -> None:
        """What a custom function's forward made, tied to the gradient that its backward gives: see ``_Backward``."""
        outputs, entries, gradients, incoming, number, refusal = node.args
        saved: list[Argument] = []
        text = ""
        if not refusal:
            backward = _backward_of(node.graph, int(number), list(gradients), list(incoming), self._constants)  # type: ignore
            saved = [Ref(self._aliases.name(value)) for value in backward.saved]
            text = backward.text
        tied: list[Argument] = [[Ref(self._aliases.name(n)) for n in nodes] for nodes in (outputs, entries)]  # type: ignore
        self._add(node, CUSTOM_FUNCTION, (*tied, saved, text, str(refusal)), {})

    def _keep_gradient(self, node: fx.Node, value: str, former: str) -> str:
        """``value`` with the gradient of ``former``: what autograd makes of a tensor that was overwritten unseen."""
        if former not in self._carrying:
            return self._without_gradient(node, value) if value in self._carrying else value
        passed = pass_on_text(self._values[former])
        return self._emit(node, CUSTOM_FUNCTION, [[Ref(value)], [Ref(former)], [], passed, ""])

    def _pass_zero(self, node: fx.Node, value: str, former: str) -> str:
        """``value`` in the place of all of ``former``, which gets a gradient of zeros, as in torch, and not none."""
        shape: list[Argument] = list(self._values[former].shape)
        if not shape:
            former, value = (self._emit(node, "aten.reshape.default", [Ref(name), [1]]) for name in (former, value))
        size = shape[0] if shape else 1
        passed = self._emit(node, "aten.slice_scatter.default", [Ref(former), Ref(value), 0, 0, size])
        return passed if shape else self._emit(node, "aten.reshape.default", [Ref(passed), shape])

    def _check_autocast(self, node: fx.Node) -> None:
        """A block without autocast is as if it were not there; one with it would change dtypes behind the graph."""
        entered = node.args[0] if node.target is _exit_autocast else node
        assert isinstance(entered, fx.Node)
        if entered.args[2]:
            raise UnsupportedOperator(
                f"in module {node.meta.get(MODULE_META) or 'forward'!r}: torch.autocast cannot be compiled; the device "
                "computes in bf16 anyway, so leave it out, or convert with .to(…) where forward needs another dtype"
            )

    def _overwrite(
        self, node: fx.Node, mutated: fx.Node, op: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> None:
        """An in-place operator as one that is not: what it overwrites stands for the result from now on."""
        root = self._aliases.root(mutated)
        owner = self._aliases.name(root)
        base = op.split(".")[1]
        what = f"in module {node.meta.get(MODULE_META) or 'forward'!r}: {base}"
        if base != "detach_" and _turns_a_tensor(node) and self._values[owner].kind is ValueKind.OPERATOR:
            self._add(node, _functional(op, what), args, kwargs)  # a view, by which the tensor goes from now on
            return
        hooked = next((name for name, n in self._roots.items() if n is not root and shares_memory(n, root)), None)
        self._check_owner(self._values[owner], hooked, what)
        if self._values[owner].kind is ValueKind.PARAMETER:
            args = (Ref(owner), *args[1:])  # as it is held, not as detach reads it
        arguments = {"target": args[0], "source": args[1] if len(args) > 1 else None}
        dtype = dtype_name(mutated.meta["val"].dtype)
        if (form := functional_form(node, op, arguments)) is not None:
            value = self._emit(node, *form)
            if self._aliases.is_root(mutated) and self._named(mutated) in self._carrying:
                value = self._pass_zero(node, value, self._named(mutated))
        else:
            form_of = _functional(op, what)
            if keeps_dtype(node, op) or self._infer(form_of, args, kwargs)[0] == dtype:
                self._add(node, form_of, args, kwargs)
                value = self._aliases.name(node)
            else:
                value = self._emit(node, form_of, list(args), kwargs)
        if self._values[value].dtype != dtype:  # what is overwritten keeps its own
            value = self._emit(node, "aten.to.dtype", [Ref(value), Special("dtype", dtype)])
        self._move(node, mutated, value, what)
        self._aliases.identify(node, mutated)

    def _check_owner(self, owner: Value, hooked: str | None, what: str) -> None:
        """Refuse to overwrite a parameter; of an input, a copy is overwritten, and the program is told.

        ``F.embedding`` alone may overwrite a parameter: with ``max_norm`` it shortens the rows that it looks up.
        """
        if hooked is not None or (owner.kind is ValueKind.PARAMETER and not what.endswith(": embedding_renorm_")):
            raise UnsupportedOperator(
                f"{what} overwrites {hooked or owner.name!r}; parameters cannot be overwritten in forward: use "
                "the operator without the underscore, or assign the new value before session.run; what forward keeps "
                "from run to run, such as a moving average of weights, belongs into a buffer (register_buffer)"
            )
        if owner.kind is not ValueKind.INPUT:
            return
        if owner.requires_grad and not self._is_untracked:
            raise UnsupportedOperator(
                f"{what} overwrites input {owner.name!r}, which requires a gradient; torch refuses that too: use the "
                "operator without the underscore"
            )
        logger.warning(
            "[warning Samba]: %s overwrites input %r: the device overwrites a copy, and the program's own tensor keeps "
            "its values; return the new value from forward where the program needs it", what, owner.name,
        )  # fmt: skip

    def _move(self, node: fx.Node, target: fx.Node, value: str, what: str) -> None:
        """``target`` stands for ``value`` from now on; a buffer, or what it is a view of, is updated."""
        root = self._aliases.root(target)
        moved = self._aliases.overwrite(
            target, value, self._emitting(node), what,
            lambda new, former: self._keep_gradient(node, new, former), self._is_untracked,
        )  # fmt: skip
        buffer = next((name for name, node in self._roots.items() if node is root), None)
        if buffer is None:
            return
        kind, was_checked = self._values[buffer].kind, what.endswith("_")  # a write that ``_check_owner`` allowed
        if kind is ValueKind.INPUT and was_checked:
            return
        if kind is not ValueKind.BUFFER and not was_checked:
            raise UnsupportedOperator(
                f"{what} overwrites {buffer!r}, which is an input or a parameter of the graph; give it a buffer of the "
                "model (register_buffer)"
            )
        if moved.root is not root:
            raise UnsupportedOperator(f"{what} overwrites buffer {buffer!r} through a view; overwrite all of it")
        # A parameter gets what was computed, not what autograd makes of it: that may be rounded.
        self._updates[buffer] = value if self._values[buffer].kind is ValueKind.PARAMETER else moved.value

    def _update_of(self, buffer: str, value: str, outputs: tuple[str, ...]) -> str:
        """What a section writes into a buffer is a value that nobody reads; one that is read gets copied."""
        read = {name for operator in self._operators for name in operator.inputs}
        shared = list(self._updates.values()).count(value) > 1
        if value in read or value in outputs or shared or self._values[value].kind is not ValueKind.OPERATOR:
            return self._copy(value, _EXACT if self._values[buffer].kind is ValueKind.PARAMETER else {})
        maker = next(number for number, operator in enumerate(self._operators) if value in operator.outputs)
        is_read_later = reads_after(self._operators[maker + 1 :], self._operators, buffer)
        return self._copy(value) if is_read_later else value

    def _without_statistics(self, node: fx.Node, args: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Norms update their running statistics without saying so: make that operators of its own.

        x [N, C, …]: mean and unbiased variance over all but axis 1 move the statistics [C] by ``momentum``; of an
        instance norm those of each instance, averaged over N.
        """
        x, _, _, mean, variance, training, momentum = node.args[:7]
        if not (training and isinstance(mean, fx.Node) and isinstance(variance, fx.Node)):
            return args
        assert isinstance(x, fx.Node) and isinstance(momentum, float)
        word = str(node.target).split(".")[1]
        by_instance = word == "instance_norm"
        dims: list[Argument] = [d for d in range(2 if by_instance else 0, x.meta["val"].dim()) if d != 1]
        seen = self._emit(node, _DETACH, [Ref(self._aliases.name(x))])
        exact = self._emit(node, "aten.to.dtype", [Ref(seen), Special("dtype", dtype_name(mean.meta["val"].dtype))])
        for statistic, found in (
            (mean, self._emit(node, "aten.mean.dim", [Ref(exact), dims])),
            (variance, self._emit(node, "aten.var.dim", [Ref(exact), dims])),
        ):
            if by_instance:
                found = self._emit(node, "aten.mean.dim", [Ref(found), [0]])
            old = self._aliases.name(statistic)
            moved = self._emit(node, "aten.lerp.Scalar", [Ref(old), Ref(found), momentum])
            self._move(node, statistic, moved, word)
        return (*args[:3], None, None, *args[5:])

    def _show_again(self, view: fx.Node, base: fx.Node, base_value: str) -> str | None:
        """A view of what has been overwritten, as it is now.

        Autograd may not follow a view that was taken while gradients were off: none of what carries one.
        """
        is_untracked = NO_GRAD_META in view.meta and not _gives_itself(view)
        if asks_for_places(view):  # it may show more than its operand, which alone says whether a gradient flows
            is_untracked = is_untracked or self._named(view.args[0]) not in self._carrying
        if is_untracked and base_value in self._carrying:
            return None
        return show_again(view, base, base_value, self._name_of_value, self._emitting(view))

    def _show_places(self, node: fx.Node) -> None:
        """``as_strided``, of its operand or of the tensor that owns that one's memory."""
        operand = node.args[0]
        assert isinstance(operand, fx.Node)
        carries = self._named(operand) in self._carrying
        shown = shown_places(node, self._aliases.root(operand), carries)
        value = self._named(shown)
        if value in self._carrying and not carries:
            value = self._without_gradient(node, value)
        self._aliases.define(node, look_up_places(node, shown, value, self._emitting(node)), shown)

    def _emitting(self, node: fx.Node) -> Emit:
        def emit(op: str, args: list[Argument], kwargs: Mapping[str, Argument] = _NO_KWARGS) -> str:
            return self._emit(node, op, args, kwargs)

        return emit

    def _named(self, item: object) -> str:
        name = self._name_of_value(item)
        assert name is not None
        return name

    def _emit(self, node: fx.Node, op: str, args: list[Argument], kwargs: Mapping[str, Argument] = _NO_KWARGS) -> str:
        """Add an operator of our own making beside ``node``; returns its value's name."""
        op_type, module = op.split(".")[1], str(node.meta.get(MODULE_META, ""))
        name = self._unique("__".join(filter(None, (self._model, module.replace(".", "__"), _label(op_type)))))
        value = Value(f"{name}__outputs__0", ValueKind.OPERATOR, *self._infer(op, args, kwargs))
        self._values[value.name] = value
        labels = dict(node.meta.get(LABELS_META, {}))
        self._append(Operator(name, op, op_type, tuple(args), dict(kwargs), (value.name,), module, labels))
        return value.name

    def _append(self, operator: Operator) -> None:
        self._operators.append(operator)
        if operator.op != _DETACH and not self._carrying.isdisjoint(operator.inputs):
            self._carrying.update(
                n for n in operator.outputs if getattr(torch, self._values[n].dtype).is_floating_point
            )

    def _infer(self, op: str, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> tuple[str, tuple[int, ...]]:
        """dtype and shape of what an operator makes, by running it on tensors without data."""
        tensors = {
            name: torch.empty(self._values[name].shape, dtype=getattr(torch, self._values[name].dtype), device="meta")
            for name in references([*args, *kwargs.values()])
        }
        if op == CUSTOM_FUNCTION:
            ((made,), *_) = (decode(a, tensors) for a in args)
        else:
            given = {key: decode(value, tensors) for key, value in kwargs.items()}
            made = callable_of(op)(*(decode(a, tensors) for a in args), **given)
        return dtype_name(made.dtype), tuple(map(int, made.shape))

    def _op_of(self, node: fx.Node) -> str:
        try:
            return name_of(node.target)
        except UnsupportedOperator as cause:
            module = node.meta.get(MODULE_META) or "forward"
            raise UnsupportedOperator(f"in module {module!r}: {cause.message}") from cause

    def _mutated(self, node: fx.Node) -> fx.Node | None:
        """The value that an in-place operator overwrites: see ``overwritten_argument``."""
        try:
            return overwritten_argument(node)
        except UnsupportedOperator as cause:
            raise UnsupportedOperator(f"in module {_module_of(node)!r}: {cause.message}") from cause

    def _add(self, node: fx.Node, op: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        op_type = op.split(".")[1]
        module = str(node.meta.get(MODULE_META, ""))
        name = self._unique("__".join(filter(None, (self._model, module.replace(".", "__"), _label(op_type)))))
        made = node.meta["val"]
        tensors = list(made) if isinstance(made, list | tuple) else [made]
        names = tuple(f"{name}__outputs__{position}" for position in range(len(tensors)))
        for value_name, tensor in zip(names, tensors, strict=True):
            if isinstance(tensor, list | tuple):
                raise UnsupportedOperator(
                    f"in module {module or 'forward'!r}: {op_type} returns a list of tensors within a tuple, which a "
                    "graph cannot hold: compute it outside of forward"
                )
            if tensor is None:
                raise UnsupportedOperator(
                    f"in module {module or 'forward'!r}: one of the results of {op_type} is None, which a graph cannot "
                    "hold: give its layer a weight and a bias, or write it in simpler operators"
                )
            if not isinstance(tensor, torch.Tensor):
                raise UnsupportedOperator(
                    f"in module {module or 'forward'!r}: {op_type} gives a Python value that depends on data; "
                    "control flow and shapes cannot depend on data"
                )
            if tensor.layout is not torch.strided:
                raise UnsupportedOperator(
                    f"in module {module or 'forward'!r}: {op_type} makes a tensor of layout {tensor.layout}; the RDU "
                    "has dense tensors only: use a dense tensor with a mask"
                )
            if dtype_name(tensor.dtype) not in ITEM_BYTES:
                raise UnsupportedOperator(
                    f"in module {module or 'forward'!r}: {op_type} makes a tensor of dtype {dtype_name(tensor.dtype)}; "
                    f"legal on the RDU: {', '.join(ITEM_BYTES)}"
                )
            shape = tuple(map(int, tensor.shape))
            self._values[value_name] = Value(value_name, ValueKind.OPERATOR, dtype_name(tensor.dtype), shape)
        labels = dict(node.meta.get(LABELS_META, {}))
        if op in _DROPOUTS:
            args = self._with_rate(f"{name}__p", args)
        if op_type == "embedding_renorm":
            labels |= _EXACT  # it overwrites a parameter, whose other rows keep every bit
        names_dtype = NAMED_META in node.meta or not self._may_be_looked_up(module)
        self._append(
            Operator(
                name, op, op_type, args, kwargs, names, module, labels, names_dtype=names_dtype,
                is_of_loss=LOSS_META in node.meta,
            )
        )  # fmt: skip
        if isinstance(made, list | tuple):
            self._tuples[node] = names
        else:
            self._aliases.define(node, names[0], node.args[0] if node.args else None)

    def _may_be_looked_up(self, module: str) -> bool:
        """Whether a dtype that is passed in ``module`` may be one that a tensor was asked for."""
        parts = module.split(".") if module else []
        above = (".".join(parts[:count]) for count in range(len(parts) + 1))
        return not self._dtype_readers.isdisjoint(above)

    def _with_rate(self, symbol: str, args: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Read an active dropout's rate from a buffer [] f32, so that a run can change it. 0 and 1 are compiled in."""
        x, rate, *rest = args
        if rest != [True] or not isinstance(rate, float) or not 0 < rate < 1:
            return args
        self._values[symbol] = Value(symbol, ValueKind.BUFFER, "float32", ())
        self._rates[symbol] = rate
        return (x, Ref(symbol), *rest)

    def _output(self, item: Any, earlier: tuple[str, ...]) -> str:
        """An output must be a value of its own: an input that is returned as it is gets copied, and so is a value that
        is returned twice, as each output starts backward with a gradient of its own.
        """
        if not isinstance(item, fx.Node):
            raise UnsupportedOperator(f"forward returns {item!r}; it may return tensors, and tuples or lists of them")
        name = self._aliases.name(item)
        is_own = self._values[name].kind is ValueKind.OPERATOR and name not in earlier
        return name if is_own else self._copy(name)

    def _copy(self, name: str, labels: Mapping[str, str] = _UNLABELLED) -> str:
        copy = self._unique(f"{self._model}__{_label('clone')}")
        source = self._values[name]
        value = Value(f"{copy}__outputs__0", ValueKind.OPERATOR, source.dtype, source.shape)
        self._values[value.name] = value
        self._operators.append(
            Operator(copy, "aten.clone.default", "clone", (Ref(name),), {}, (value.name,), labels=labels)
        )
        return value.name

    def _name_of_value(self, item: object) -> str | None:
        if not isinstance(item, fx.Node):
            return None
        name = self._aliases.name(item)
        return self._without_gradient(item, name) if self._is_untracked and name in self._carrying else name

    def _without_gradient(self, node: fx.Node, name: str) -> str:
        if (known := self._detached.get(name)) is None:
            known = self._detached[name] = self._emit(node, _DETACH, [Ref(name)])
        return known

    def _unique(self, name: str) -> str:
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return name if count == 0 else f"{name}_{count}"


def _module_of(node: fx.Node) -> str:
    return str(node.meta.get(MODULE_META) or "forward")


def _returns_nothing(node: fx.Node) -> bool:
    """Whether an operator acts by what it does alone, such as one that overwrites a list of tensors."""
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def _functional(op: str, what: str) -> str:
    """The operator that makes what the in-place operator ``op`` writes."""
    if (found := find_functional(op)) is None:
        raise UnsupportedOperator(f"{what} overwrites its input and has no form that does not")
    return found


def _turns_a_tensor(node: fx.Node) -> bool:
    """Whether an in-place operator changes how its tensor shows its memory, such as ``unsqueeze_``, and no number."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.inplace_view in node.target.tags


def _gives_itself(node: fx.Node) -> bool:
    """Whether torch gives the call's operand back, such as ``x.float()`` of what is float32."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    made, given, name = node.meta.get("val"), node.args[0].meta.get("val"), node.target._schema.name
    if name.endswith("dropout") and len(node.args) == 3:
        return bool(node.args[1] == 0) or node.args[2] is False
    if name.removeprefix("aten::") not in _IDENTITIES:
        return False
    if not isinstance(made, torch.Tensor) or not isinstance(given, torch.Tensor):
        return False
    is_alike = made.dtype == given.dtype and made.shape == given.shape and made.stride() == given.stride()
    return is_alike and shares_memory(node, node.args[0])


@dataclass(frozen=True, slots=True)
class _Backward:
    """A custom function's backward as text, and the nodes outside of it whose values it reads."""

    text: str
    saved: tuple[fx.Node, ...]


def _backward_of(
    recorded: fx.Graph, number: int, gradients: Sequence[fx.Node | None], incoming: Sequence[fx.Node],
    constants: Mapping[str, str],
) -> _Backward:  # fmt: skip
    """Take the backward of custom function ``number`` out of a record.

    Args:
        gradients: one for each of the function's differentiable arguments. incoming: one for each of its outputs.
        constants: attributes of the record that are values of the graph.
    """
    inside = [n for n in recorded.nodes if n.meta.get(BACKWARD_META) == number and n not in incoming]
    inside = [n for n in inside if n.op != "get_attr" or str(n.target) not in constants]
    read = dict.fromkeys([n for node in inside for n in node.all_input_nodes] + [g for g in gradients if g is not None])
    saved = tuple(n for n in read if n not in {*inside, *incoming})
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    values: list[Value] = []
    for node in (*saved, *incoming):
        copies[node] = graph.placeholder(f"i{len(values)}")
        copies[node].meta = {"val": node.meta["val"]}
        made = node.meta["val"]
        values.append(Value(f"i{len(values)}", ValueKind.INPUT, dtype_name(made.dtype), tuple(map(int, made.shape))))
    for node in inside:
        copies[node] = graph.node_copy(node, lambda old: copies[old])
        copies[node].meta = {k: v for k, v in node.meta.items() if k not in {BACKWARD_META, NO_GRAD_META}}
    graph.output([copies[gradient] for gradient in gradients if gradient is not None])
    converted = model_graph_from_fx("backward", graph, values, {})
    found = iter(converted.outputs)
    names = [None if gradient is None else next(found) for gradient in gradients]
    return _Backward(backward_text(converted, [value.name for value in values], names), saved)


def _label(op_type: str) -> str:
    """How an operator is called inside names: ``cross_entropy_loss`` → ``crossentropyloss`` (SDK reference 20)."""
    return op_type.strip("_").replace("_", "")
