"""Calls one operator of a model graph, to trace a section or to infer dtypes."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, Final

import torch

from rdukit.errors import CompileError, UnsupportedOperator
from rdukit.pef.kernel import KernelGraph, kernel_from_json
from rdukit_compiler.ir import Operator
from rdukit_compiler.operators.custom_gradients import CUSTOM_FUNCTION, operators_of
from rdukit_compiler.operators.indexing import (
    embedding,
    embedding_bag,
    embedding_renorm,
    index,
    index_fill,
    index_put,
    one_hot,
)
from rdukit_compiler.operators.layers import convolution_form, dropout, feature_dropout, lstm
from rdukit_compiler.operators.naming import callable_of, decode
from rdukit_compiler.operators.own_operators import (
    INT4_LINEAR,
    INT8_EMBEDDING,
    INT8_LINEAR,
    grouped_mm,
    int4_linear,
    int8_embedding,
    int8_linear,
)  # fmt: skip
from rdukit_compiler.operators.supported import GROUPED_MM_OF_OTHERS, NORMS, SAME_DTYPE, WITHOUT_BF16, runs_on_host
from rdukit_compiler.operators.vocabulary import LOSSES, RUNNING_SUMS
from rdukit_compiler.torch_private import DisableTorchFunction, quiet_failures

#: Operators that take indices or class labels → the positions of those operands. torch refuses narrow integers there,
#: some only in execution; the device accepts them.
_INDEX_OPERANDS: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("one_hot",), (0,)),
    **dict.fromkeys(
        "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d multi_margin_loss multilabel_margin_loss embedding take "
        "put index_put repeat_interleave".split(), (1,)
    ),
    **dict.fromkeys(
        "gather scatter scatter_add scatter_reduce index_select index_add index_copy index_fill index_reduce".split(),
        (2,),
    ),
    "embedding_bag": (1, 2),
}  # fmt: skip
#: Those of these operators in which torch also refuses int32.
_LONG_ONLY: Final = frozenset(
    "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d multi_margin_loss multilabel_margin_loss take put one_hot "
    "index_copy index_fill".split()
)
#: Functions of torch that also refuse int32 → the position and the name of that operand.
_INDEXING_FUNCTIONS: Final[dict[str, tuple[int, str]]] = {
    **dict.fromkeys("cross_entropy nll_loss multi_margin_loss multilabel_margin_loss".split(), (1, "target")),
    **dict.fromkeys("gather index_select scatter".split(), (2, "index")),
    "embedding": (0, "input"), "one_hot": (0, "tensor"), "take": (1, "index"), "take_along_dim": (1, "indices"),
    "__getitem__": (1, ""),
}  # fmt: skip
_NARROW = frozenset({torch.int8, torch.int16, torch.uint8})
_NARROW_OR_INT32 = _NARROW | {torch.int32}


def run_operator(operator: Operator, tensors: dict[str, Any]) -> None:
    """Call one operator on the tensors that it names, and add its results to them.

    Operands of mixed floating dtypes are promoted: the device accepts them, although torch refuses some.

    Raises:
        CompileError: torch refuses the operator even then.
    """
    function = _form_of(operator)
    args = [decode(a, tensors) for a in operator.args]
    for place in _INDEX_OPERANDS.get(operator.op_type, ()):
        if place < len(args):
            args[place] = as_index(args[place], _NARROW_OR_INT32 if operator.op_type in _LONG_ONLY else _NARROW)
    kwargs = {k: decode(v, tensors) for k, v in operator.kwargs.items()}
    for dtype in operator.compute.operands if operator.compute else ():
        args = [_converted(a, getattr(torch, dtype)) for a in args]
    if operator.op_type in SAME_DTYPE or (operator.op_type in NORMS and _is_wide(args[0])):
        args, kwargs = _promoted(operator, args, kwargs)
    with quiet_failures():
        try:
            made = function(*args, **kwargs)
        except RuntimeError:
            made = _attempt(function, *_promoted(operator, args, kwargs), operator)
        except (TypeError, ValueError, IndexError, ZeroDivisionError) as cause:
            raise _refusal(operator, cause) from cause
    if operator.compute and operator.compute.result:
        made = _converted(made, getattr(torch, operator.compute.result))
    if len(operator.outputs) == 1 and isinstance(made, torch.Tensor):
        tensors[operator.outputs[0]] = made
    else:
        tensors.update(zip(operator.outputs, made, strict=True))


def _form_of(operator: Operator) -> Callable[..., Any]:
    has_bf16 = operator.op_type not in WITHOUT_BF16 and not operator.op_type.startswith("special_")
    if runs_on_host(operator) or not has_bf16:
        return _rounded_once(operator.op)
    if operator.op_type in LOSSES | RUNNING_SUMS:
        return _wide(operator.op)
    return _FORMS.get(operator.op) or callable_of(operator.op)


def _promoted(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the operands in one floating dtype; attention's mask gets that of query, key and value."""
    operands = [*args, *kwargs.values()]
    is_attention = operator.op_type == "scaled_dot_product_attention"
    dtype = _common_float(operands, args[:3] if is_attention else operands)
    if dtype is None:
        return args, kwargs
    return [_converted(a, dtype) for a in args], {key: _converted(value, dtype) for key, value in kwargs.items()}


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _attempt(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], operator: Operator) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as cause:
        raise _refusal(operator, cause) from cause


def _refusal(operator: Operator, cause: Exception) -> CompileError:
    where = operator.module or "forward"
    why = str(cause)
    if why.startswith("cond must be a bool"):  # torch's message for a check of sizes that are 0
        why = "torch's formula rejects these sizes; one of them may be 0"
    return CompileError(f"operator {operator.op_type!r} in module {where!r} cannot run: {why}")


@contextlib.contextmanager
def quiet_refusals(args: Sequence[Any]) -> Iterator[None]:
    """Suppress torch's log where floating dtypes are mixed: a refused call is repeated with promoted operands."""
    with quiet_failures() if _common_float(args, args) is not None else contextlib.nullcontext():
        yield


def call_promoting(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a torch function; convert operands that only torch refuses: mixed floats, and narrow indices."""
    try:
        return function(*args, **kwargs)
    except RuntimeError:
        name = getattr(function, "__name__", "")
        values, places = [*args, *kwargs.values()], [*range(len(args)), *kwargs]
        indices = _INDEXING_FUNCTIONS.get(name, ())
        taken = [
            as_index(value, _NARROW_OR_INT32) if place in indices else value
            for place, value in zip(places, values, strict=True)
        ]
        promoted = promote_floats(taken)
        is_same = promoted is None and all(map(is_, taken, values))
        if is_same or (name.endswith("_") and not name.endswith("__")):  # in place
            raise
        taken = taken if promoted is None else promoted
        return function(*taken[: len(args)], **dict(zip(kwargs, taken[len(args) :], strict=True)))


def promote_floats(args: Sequence[Any]) -> list[Any] | None:
    """Promote all floating tensors of ``args``, also those in lists, to one dtype; None if they agree already.

    As in torch, the dtype is the widest among tensors with dimensions, if there are any.
    """
    dtype = _common_float(args, args)
    return None if dtype is None else [_converted(a, dtype) for a in args]


def _common_float(args: Sequence[Any], leading: Sequence[Any]) -> torch.dtype | None:
    """Return the dtype to which floating tensors among ``args`` are promoted, that of ``leading``; None if they have
    it.
    """
    with DisableTorchFunction():  # the program looks up no dtype here
        if len({tensor.dtype for tensor in _floats_in(args)}) < 2:
            return None
        floats = [(tensor.dtype, tensor.dim() > 0) for tensor in _floats_in(leading)]
    chosen = {dtype for dtype, has_dims in floats if has_dims} or {dtype for dtype, _ in floats}
    return max(chosen, key=lambda dtype: (dtype.itemsize, dtype == torch.float32))


def _floats_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _floats_in(item)
    elif isinstance(value, torch.Tensor) and value.is_floating_point():
        yield value


def _converted(value: Any, dtype: torch.dtype) -> Any:
    """Return the floating tensors inside ``value`` in ``dtype``."""
    if isinstance(value, list | tuple):
        return type(value)(_converted(item, dtype) for item in value)
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def as_index(value: Any, narrow: Collection[torch.dtype] = _NARROW) -> Any:
    """Widen integers of the dtypes ``narrow``, also in a list, to int64: the device indexes with them as they are.

    Bytes in a list are masks, as in torch, and stay.
    """
    if isinstance(value, list | tuple):
        return type(value)(as_index(item, {*narrow} - {torch.uint8}) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    with DisableTorchFunction():
        is_narrow = value.dtype in narrow
    return value.long() if is_narrow else value


def _viewed(op: str) -> Callable[..., Any]:
    """Return a form of the view that copies where the layout does not allow one.

    A cut changes layouts. A tensor that was one block in forward, such as the output of torch's attention, may come
    from a section, whose outputs are all packed.
    """

    def form(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return callable_of(op)(x, *args, **kwargs)
        except (RuntimeError, ValueError):
            return callable_of(op)(x.contiguous(), *args, **kwargs)

    return form


def _norm(op: str) -> Callable[..., Any]:
    """Return a form of the norm in f32 inside, rounded once: the result has the dtype of x.

    torch's own bf16 form adds up the parameters' gradients in bf16, which stop growing after a few hundred rows.
    """

    def form(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        wide = [_as_wide(value) for value in (x, *args)]
        named = {key: _as_wide(value) for key, value in kwargs.items()}
        made: torch.Tensor = callable_of(op)(*(promote_floats(wide) or wide), **named)
        return made.to(x.dtype)

    return form


def _wide(op: str) -> Callable[..., Any]:
    """Return a form of the operator in f32 with an f32 result: for losses that a program reads, and for sums.

    torch's own bf16 form of a loss rounds each log-probability, so that one of -10 is off by 0.03 and its gradient by
    3 %, and adds up in bf16 (Source: ours, as the vendor's tolerance of 3e-3 for gradients asks).
    """

    def form(*args: Any, **kwargs: Any) -> Any:
        return callable_of(op)(*(_as_wide(a) for a in args), **{key: _as_wide(value) for key, value in kwargs.items()})

    return form


def _rounded_once(op: str) -> Callable[..., Any]:
    """Return a form in f32, in which the host computes; the result is bf16 if all its floating operands are."""

    def form(*args: Any, **kwargs: Any) -> Any:
        tensors = [*args, *kwargs.values()]
        kinds = {a.dtype for a in tensors if isinstance(a, torch.Tensor) and a.is_floating_point()}
        function = _FORMS.get(op) or callable_of(op)
        made = function(*(_as_wide(a) for a in args), **{k: _as_wide(v) for k, v in kwargs.items()})
        if kinds != {torch.bfloat16}:
            return made
        return [_as_bf16(m) for m in made] if isinstance(made, list | tuple) else _as_bf16(made)

    return form


def _as_bf16(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _as_wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


def custom_function(
    outputs: Sequence[torch.Tensor], entries: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], backward: str,
    refusal: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return ``outputs`` unchanged; their gradient for ``entries`` is that of ``backward``.

    Raises:
        UnsupportedOperator: a gradient is needed and there is none; ``refusal`` is the reason.
    """
    plan = (len(outputs), len(entries), backward, refusal)
    made: tuple[torch.Tensor, ...] = _AsWritten.apply(plan, *outputs, *entries, *saved)  # type: ignore[no-untyped-call]
    return made


class _AsWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: tuple[int, int, str, str], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made, entries, _, _ = ctx.plan = plan
        ctx.save_for_backward(*tensors[made + entries :])
        return tuple(tensor.detach() for tensor in tensors[:made])

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        made, entries, text, refusal = ctx.plan
        if refusal:
            raise UnsupportedOperator(
                f"{refusal}; compile for inference, or train only parameters that do not depend on it"
            )
        gradients = _run(kernel_from_json(text.encode()), [*ctx.saved_tensors, *incoming])
        assert len(gradients) == entries
        return None, *[None] * made, *gradients, *[None] * len(ctx.saved_tensors)


def _run(graph: KernelGraph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    tensors: dict[str, Any] = dict(zip((spec.name for spec in graph.inputs), inputs, strict=True))
    for operator in operators_of(graph, ""):
        run_operator(operator, tensors)
    return [None if name is None else tensors[name] for name in graph.outputs]


#: Operators that are called in another form than torch's.
_CONVOLUTIONS = (
    "aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default",
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input",
)  # fmt: skip
_NORMS = (
    "aten.layer_norm.default", "aten.batch_norm.default", "aten.group_norm.default", "aten.instance_norm.default",
)  # fmt: skip
_FORMS: dict[str, Callable[..., Any]] = {
    **{op: convolution_form(op) for op in _CONVOLUTIONS},
    **{op: _norm(op) for op in _NORMS},
    **{op: _viewed(op) for op in ("aten.view.default", "aten.unflatten.int")},
    "aten.embedding.default": embedding,
    "aten.embedding_renorm.default": embedding_renorm,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten.embedding_bag.default": embedding_bag,
    CUSTOM_FUNCTION: custom_function,
    INT8_LINEAR: int8_linear,
    INT4_LINEAR: int4_linear,
    INT8_EMBEDDING: int8_embedding,
    "aten.index.Tensor": index,
    "aten.one_hot.default": one_hot,
    "aten.index_put.default": index_put,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.dropout.default": dropout,
    "aten.feature_dropout.default": feature_dropout,
    "aten.lstm.input": lstm,
    **dict.fromkeys(("aten._grouped_mm.default", *GROUPED_MM_OF_OTHERS), grouped_mm),
}
