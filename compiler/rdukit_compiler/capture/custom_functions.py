"""Record custom autograd functions as they are written: the forward, and the backward as a graph of its own.

Autograd calls a custom function's forward with gradients off and takes its gradient from ``backward`` alone. While a
record is made, this module replaces ``Function.apply``: forward runs, then backward runs once on stand-ins for the
gradients that will arrive, and an operator ties the two together. Nodes of the backward carry ``BACKWARD_META``.

``Function.apply`` is replaced by its code, not by its name: programs keep ``my_function = MyFunction.apply``.
"""

import contextlib
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any, Final

import torch
from torch import fx
from torch.autograd.function import FunctionCtx, _is_setup_context_defined
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.checkpoint import CheckpointFunction

from rdukit.errors import RdukitError, UnsupportedOperator
from rdukit_compiler.capture.record_nodes import BACKWARD_META, NO_GRAD_META, marked
from rdukit_compiler.ir import Value, ValueKind
from rdukit_compiler.operators.naming import define_operators, dtype_name
from rdukit_compiler.torch_private import DisableTorchFunction, are_transforms_active

#: Names of the operators in a record.
ENTRY: Final = "rdukit.function_entry.default"

_lock = threading.RLock()
#: Under the lock: an item for each caller that is inside ``recording_functions``.
_depth: list[None] = []
_thread = threading.local()


@contextlib.contextmanager
def recording_functions() -> Iterator[None]:
    """Record custom functions that this thread applies as written, while the block lasts."""
    _operators()
    apply = _apply()
    with _lock:
        if not _depth:
            apply.__code__ = _replacement()
        _depth.append(None)
    before, _thread.numbers = getattr(_thread, "numbers", None), count()
    try:
        yield
    finally:
        _thread.numbers = before
        with _lock:
            _depth.pop()
            if not _depth:
                apply.__code__ = _original().__code__


def apply_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of ``function.apply(*args, **kwargs)``; recorded as written if this thread is recording.

    Raises:
        UnsupportedOperator: the function's gradient depends on which gradients arrive, or forward itself differentiates
            it.
    """
    mode, numbers = get_proxy_mode(), getattr(_thread, "numbers", None)
    if mode is None or numbers is None:
        return _original()(function, *args, **kwargs)
    if are_transforms_active():
        try:
            return _original()(function, *args, **kwargs)
        except AssertionError as cause:
            raise UnsupportedOperator(
                f"forward applies custom autograd function {function.__name__!r} inside a transformation of torch.func "
                "(vmap, grad, …), which cannot be compiled: apply it outside, or use torch's own operators there"
            ) from cause
    if (override := find_override(args)) is not None:

        def apply(*plain: Any, **named: Any) -> Any:
            return apply_function(function, plain, named)

        return override.__torch_function__(apply, (override,), args, kwargs)
    if function is CheckpointFunction:
        return args[0](*args[2:])  # the compiler decides which values are recomputed
    context, made = _run_forward(function, args, kwargs)
    entries = [position for position, value in enumerate(args) if _is_differentiable(value)]
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    fixed = {id(tensor) for tensor in getattr(context, "non_differentiable", ())}
    carried = [i for i, value in enumerate(outputs) if _is_differentiable(value) and id(value) not in fixed]
    if not entries or not carried or not torch.is_grad_enabled():
        return made
    number = next(numbers)
    with marked(mode.tracer.graph, BACKWARD_META, number), torch.no_grad():
        incoming = [_operators().incoming_gradient.default(outputs[i]) for i in carried]
        gradients, refusal = _run_backward(function, context, outputs, carried, incoming, len(args))
    tied = _operators().custom_function.default(
        [outputs[i] for i in carried], context.entries, [gradients[p] for p in entries], incoming, number, refusal
    )
    dirty = {id(tensor) for tensor in getattr(context, "dirty_tensors", ())}
    for position, result in zip(carried, tied, strict=True):
        if id(outputs[position]) in dirty:
            outputs[position].copy_(result)
        else:
            outputs[position] = result
    return type(made)(outputs) if isinstance(made, list | tuple) else outputs[0]


class _Context(FunctionCtx):
    """Argument ``ctx`` of forward and backward."""

    def __init__(self, entries: list[torch.Tensor], needs: tuple[bool, ...]) -> None:
        #: The differentiable arguments as they were before forward ran.
        self.entries = entries
        self.needs_input_grad = needs
        self.to_save: tuple[Any, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.to_save)


def _run_forward(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Context, Any]:
    with_setup = bool(_is_setup_context_defined(function.setup_context))  # type: ignore[no-untyped-call]
    if with_setup:
        bound = inspect.signature(function.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    with DisableTorchFunction():  # tensors that autograd follows now, not those that it would follow on the host
        is_followed = any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    if is_followed:
        raise UnsupportedOperator(
            f"forward differentiates custom autograd function {function.__name__!r} itself, with torch.autograd.grad; "
            "that cannot be compiled: write the gradient out in forward, or use torch's own operators there"
        )
    needs = tuple(_is_differentiable(value) for value in args)
    entries = [_operators().function_entry.default(v) for v, needed in zip(args, needs, strict=True) if needed]
    context = _Context(entries, needs)
    with torch.no_grad():
        if not with_setup:
            return context, function.forward(context, *args, **kwargs)
        made = function.forward(*args, **kwargs)
        function.setup_context(context, args, made)
        return context, made


def _run_backward(
    function: Any, context: _Context, outputs: Sequence[Any], carried: Sequence[int],
    incoming: Sequence[torch.Tensor], arguments: int,
) -> tuple[list[torch.Tensor | None], str]:  # fmt: skip
    """Return a gradient for each argument, or the reason for its absence, which is an error only in training."""
    if not context.materialize_grads and len(carried) > 1:
        return [None] * arguments, (
            f"custom autograd function {function.__name__!r} depends on which gradients arrive "
            "(ctx.set_materialize_grads(False)), which a static graph does not know; leave out the call"
        )
    arrived = dict(zip(carried, incoming, strict=True))
    given = [
        arrived[i] if i in arrived else torch.zeros_like(value) if isinstance(value, torch.Tensor) else None
        for i, value in enumerate(outputs)
    ]
    written = function.vjp if function.vjp is not torch.autograd.Function.vjp else function.backward
    try:
        found = written(context, *given)
    except RdukitError:
        raise
    # Any exception of a backward means that this function has no gradient; programs that only infer never call it.
    except Exception as cause:  # noqa: BLE001
        return [None] * arguments, f"backward of custom autograd function {function.__name__!r} fails: {cause}"
    gradients = list(found) if isinstance(found, list | tuple) else [found]
    if len(gradients) < arguments or any(g is not None for g in gradients[arguments:]):
        return [None] * arguments, (
            f"backward of custom autograd function {function.__name__!r} returns {len(gradients)} gradients for "
            f"{arguments} arguments; it must return one for each, None where there is none"
        )
    return gradients[:arguments], ""


def extract_backward(
    recorded: fx.Graph, number: int, gradients: Sequence[fx.Node | None], incoming: Sequence[fx.Node],
    constants: Mapping[str, str],
) -> tuple[fx.Graph, list[Value], tuple[fx.Node, ...]]:  # fmt: skip
    """Copy the backward of custom function ``number`` out of a record.

    Args:
        gradients: one for each of the function's differentiable arguments. incoming: one for each of its outputs.
        constants: attributes of the record that are values of the graph.
    Returns:
        The backward, a value for each of its placeholders, and the nodes outside of it whose values it reads first.
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
    return graph, values, saved


def find_override(values: Sequence[object]) -> Any:
    """Return the type of a value that stands for a tensor without being one; None if there is none."""
    kinds = (type(value) for value in values if not isinstance(value, torch.Tensor))
    return next((kind for kind in kinds if hasattr(kind, "__torch_function__")), None)


def _is_differentiable(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@cache
def _library() -> torch.library.Library:
    like = torch.empty_like
    return define_operators(
        {
            "function_entry": "(Tensor x) -> Tensor",
            "incoming_gradient": "(Tensor output) -> Tensor",
            "custom_function": "(Tensor[] outputs, Tensor[] entries, Tensor?[] gradients, Tensor[] incoming, "
            "int number, str refusal) -> Tensor[]",
        },
        {
            "function_entry": like,
            "incoming_gradient": like,
            "custom_function": lambda outputs, *_: [like(output) for output in outputs],
        },
    )


def _operators() -> Any:
    """Register the operators; return their namespace."""
    _library()
    return torch.ops.rdukit


def _apply() -> FunctionType:
    """Return the Python function behind ``apply`` of every custom function."""
    found = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
    assert isinstance(found, FunctionType)
    return found


@cache
def _original() -> FunctionType:
    """Return torch's own ``Function.apply``, with the class as its first argument."""
    apply = _apply()
    return FunctionType(apply.__code__, apply.__globals__, apply.__name__, apply.__defaults__, apply.__closure__)


@cache
def _replacement() -> CodeType:
    _original()  # this copy keeps torch's code
    __class__ = None

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        from rdukit_compiler.capture.custom_functions import apply_function

        __class__  # torch's code has this cell: a function's code is replaced only by one with as many  # noqa: B018
        return apply_function(cls, args, kwargs)

    return apply.__code__
