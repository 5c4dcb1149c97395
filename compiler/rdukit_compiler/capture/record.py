"""Record a program's forward pass in torch's operators before decomposition; repeated calls are cheap.

torch's own recorder takes about a millisecond an operator, most of it to find shape and dtype of the result. A deep
model makes the same calls layer after layer, so results of plain calls are remembered by their arguments. torch's
recorder handles all other calls: in-place operators, constants, calls that need data, other tensor types.

All of it is private to torch: see ``torch_private``, whose self-test covers it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode, ProxyTorchDispatchMode
from torch.fx.node import _side_effectful_need_to_be_preserved_pre_dispatch

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import packed_stride
from rdukit_compiler.capture import known_lengths
from rdukit_compiler.capture.call_memory import (
    CallResult,
    RecordedCall,
    TensorForm,
    form_of,
    remember_result,
    surrounding_state,
)
from rdukit_compiler.capture.constant_folding import (
    ASSERTIONS,
    INDEXED,
    READS,
    WRITES_INDEXED,
    FindOrigin,
    are_equal,
    asks_how_many,
    fold_call,
    fold_constant,
    fold_masks,
    number_in,
    record_equality,
    record_guard,
)
from rdukit_compiler.capture.custom_functions import find_override, recording_functions
from rdukit_compiler.capture.gradient_flow import (
    MASKED,
    SAYS_REQUIRES_GRAD,
    GradientFlow,
    UnknownFunction,
    is_composite,
    is_followed,
    set_requires_grad,
    unmasked,
)
from rdukit_compiler.capture.known_lengths import with_known_lengths
from rdukit_compiler.capture.meta_rules import find_true_stride, infer_result
from rdukit_compiler.capture.real_tensors import Overwritten, keep_overwritten, restored_tensors
from rdukit_compiler.capture.record_nodes import (
    DTYPE_READERS_META,
    EXAMPLE_META,
    FIXED_META,
    FOLLOWED_META,
    LOSS_META,
    NAMED_META,
    NO_GRAD_META,
    marked,
)
from rdukit_compiler.capture.replaced_functions import UNCHECKED, find_single, overwrite_each
from rdukit_compiler.operators.run_operator import call_promoting
from rdukit_compiler.torch_private import (
    FUNCTORCH,
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    current_fake_mode,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
    quiet_failures,
    unwrap_if_dead,
)

_NEEDS_DATA: Final = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_NEVER: Final = frozenset({
    "aten::ctc_loss",
    "aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift", "aten::is_nonzero", "aten::item", "aten::detach",
    "aten::_local_scalar_dense", "prim::device", "aten::set_data", "aten::data", "aten::alias",
})  # fmt: skip

#: Functions that are recorded although they are not operators.
_RECORDED: Final = frozenset(_side_effectful_need_to_be_preserved_pre_dispatch)
_INDEXED: Final = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
#: Programs' queries of autograd → the result for a tensor that it does not follow.
_REQUIRES_GRAD: Final = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_IS_LEAF: Final = torch.Tensor.is_leaf.__get__  # type: ignore[attr-defined]
_GRAD_FN: Final = torch.Tensor.grad_fn.__get__  # type: ignore[union-attr]
_UNFOLLOWED: Final[Mapping[object, object]] = {_REQUIRES_GRAD: False, _IS_LEAF: True, _GRAD_FN: None}

#: (x, rate, train): operators that return x itself if they drop nothing.
_DROPOUTS: Final = frozenset(
    getattr(torch.ops.aten, f"{kind}dropout{end}").default
    for kind in ("", "feature_", "alpha_", "feature_alpha_")
    for end in ("", "_")
)

_NATIVE_DROPOUT: Final = torch.ops.aten.native_dropout.default

#: Operators whose result's shape depends on data → the argument that sets it.
_GIVE_SHAPES: Final = {
    torch.ops.aten.one_hot.default: "num_classes",
    torch.ops.aten.repeat_interleave.Tensor: "output_size",
    torch.ops.aten.repeat_interleave.self_Tensor: "output_size",
}

#: Losses that torch composes of several operators, in Python.
_LOSSES: Final = frozenset(
    getattr(torch.nn.functional, name)
    for name in (
        "gaussian_nll_loss", "huber_loss", "kl_div", "linear_cross_entropy", "mse_loss", "multilabel_soft_margin_loss",
        "triplet_margin_with_distance_loss",
    )
)  # fmt: skip

#: Functions whose name is a dtype.
_NAMING: Final = frozenset({torch.Tensor.float})


def record_forward(
    function: Callable[..., Any], values: Sequence[torch.Tensor], origin_of: FindOrigin = lambda tensor: None,
    followed: Sequence[bool] = (), where: Callable[[], str | None] = lambda: "",
    fixed: Mapping[int, torch.Tensor] | None = None, examples: Mapping[int, torch.Tensor] | None = None,
) -> fx.GraphModule:  # fmt: skip
    """Record the calls of ``function(list of tensors)``; each node has its result in ``meta["val"]``.

    Results are tensors without data, fake ones or on the meta device; results that share memory share a storage.

    Args:
        values: fake tensors.
        origin_of: tensor that ``function`` kept from an earlier record → its node there.
        followed: which of ``values`` stand for tensors that require a gradient.
        where: returns the running module, or None.
        fixed: position among ``values`` → the constant tensor that it stands for.
        examples: position among ``values`` → an example, whose values are assumed where ``function`` reads them.
    Raises:
        Whatever ``function`` raises.
    """
    recorder = _Recorder(None, "fake", True, True, False, False, True, _disable_torch_fn_metadata_mode=True)
    recorder.origin_of, recorder.followed, recorder.fixed = origin_of, followed, fixed or {}
    recorder.examples = examples or {}
    recorder.where, recorder.dtype_readers = where, set()
    # The record is never run, so its Python code is not generated. Forward itself decides about no_grad.
    with (
        _use_lazy_graph_module(True), torch.enable_grad(), recording_functions(), quiet_failures(),
        restored_tensors() as recorder.overwritten,
    ):  # fmt: skip
        recorded: fx.GraphModule = recorder.trace(function, values)
    for node in recorded.graph.nodes:
        if node.op == "get_attr":
            held = getattr(recorded, str(node.target))
            if isinstance(held, torch.Generator):
                raise UnsupportedOperator(
                    "forward draws with a torch.Generator of its own; the device has one generator, which "
                    "samba.utils.set_seed seeds: leave out generator=, or pass the random numbers as an input"
                )
            node.meta[FOLLOWED_META] = held.requires_grad
    recorded.meta[DTYPE_READERS_META] = frozenset(reader for reader in recorder.dtype_readers if reader is not None)
    return recorded


def _select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Write ``masked_select`` as an index, which becomes positions if the mask is known."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    x, mask = (t if t.shape == shape else t.expand(shape) for t in (x, mask))
    made: torch.Tensor = torch.ops.aten.index.Tensor(x, [mask])
    return made


def _without_dead_wrapper(argument: object) -> object:
    """Unwrap a tensor that a finished transformation wrapped."""
    is_tensor = isinstance(argument, torch.Tensor)
    return unwrap_if_dead(argument) if is_tensor else argument  # type: ignore[arg-type]


def is_of_transformation(tensor: torch.Tensor) -> bool:
    """Return whether a transformation of ``torch.func`` wrapped ``tensor``: it has no value of its own."""
    return bool(is_functorch_wrapped_tensor(tensor))


class _Recorder(proxy_tensor._MakefxTracer):
    """torch's recorder with faster modes."""

    origin_of: FindOrigin
    followed: Sequence[bool]
    fixed: Mapping[int, torch.Tensor]
    examples: Mapping[int, torch.Tensor]
    where: Callable[[], str | None]
    dtype_readers: set[str | None]
    overwritten: Overwritten

    def _construct_modes_with_fx_tracer(self, fx_tracer: Any) -> None:
        super()._construct_modes_with_fx_tracer(fx_tracer)
        self.proxy_function_mode = _FunctionMode(fx_tracer)
        self.proxy_function_mode.flow = GradientFlow(self.followed)
        self.proxy_function_mode.note_reader = lambda: self.dtype_readers.add(self.where())
        self.proxy_mode = _RememberingMode(
            fx_tracer, self.tracing_mode, self.pre_dispatch, self._allow_fake_constant,
            self._error_on_data_dependent_ops)  # fmt: skip
        self.proxy_mode.origin_of, self.proxy_mode.fixed = self.origin_of, self.fixed
        self.proxy_mode.examples, self.proxy_mode.overwritten = self.examples, self.overwritten

    def _convert_args_to_fake(self, args: Any) -> Any:
        (values,) = args
        if all(type(v) is FakeTensor and v.fake_mode is self.fake_tensor_mode for v in values):
            return args  # torch would copy each, in half a millisecond
        return super()._convert_args_to_fake(args)


class _FunctionMode(PreDispatchTorchFunctionMode):
    """Handles the few functions that must be recorded although they are not operators; passes on all others.

    It notes where a dtype comes from: ``dtype=torch.float32`` and ``dtype=x.dtype`` give the same call in
    the record, but only the first means float32 on a device that computes in another dtype.
    """

    note_reader: Callable[[], object]

    flow: GradientFlow

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if func in _RECORDED or str(getattr(func, "__module__", "")).startswith(FUNCTORCH):
            return super().__torch_function__(func, types, args, kwargs)
        if func in _INDEXED and (override := find_override(_parts(args[1]))) is not None:
            # torch looks for overrides on the indexed tensor only, and takes an index of another kind for a sequence.
            return override.__torch_function__(func, (override,), args, kwargs)
        if func in _NAMING:
            with marked(self.tracer.graph, NAMED_META, True):
                return func(*args, **(kwargs or {}))
        if func in SAYS_REQUIRES_GRAD and self._says_requires_grad(*args, **(kwargs or {})):
            return args[0]
        if func in _LOSSES:
            with marked(self.tracer.graph, LOSS_META, True):
                return call_promoting(UNCHECKED.get(func, func), args, kwargs or {})
        made = call_promoting(UNCHECKED.get(func, func), args, kwargs or {})
        if func in _UNFOLLOWED and made is _UNFOLLOWED[func]:
            return self._of_autograd(func, args[0], made)
        if made is torch.float32 and func.__name__ == "__get__":
            self.note_reader()
        return made

    def _says_requires_grad(self, tensor: Any, requires_grad: Any = True) -> bool:
        return set_requires_grad(self.tracer.tensor_tracker, self.flow, tensor, requires_grad)

    def _of_autograd(self, func: Any, tensor: Any, made: object) -> object:
        """Answer a query of autograd, which does not follow the tensor here: a record needs no gradients."""
        entry = self.tracer.tensor_tracker.get(tensor)
        if entry is None:
            return made
        node = entry.proxy.node
        if func == _REQUIRES_GRAD:
            return self.flow.requires_gradient(node)
        is_leaf = self.flow.is_leaf(node)
        return is_leaf if func == _IS_LEAF else None if is_leaf else UnknownFunction()


def _parts(index: object) -> Sequence[object]:
    return index if type(index) is tuple or type(index) is list else (index,)


class _ModeBelow(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """torch's mode behind ``torch.func``: it records the calls that ``vmap`` and similar functions make."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if kwargs and getattr(kwargs.get("device"), "type", "") == "meta":
            # Transformations read the device from a tensor's memory, which a traced tensor lacks.
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if torch.is_grad_enabled():
            return super().__torch_dispatch__(func, types, args, kwargs)
        with marked(self.tracer.graph, NO_GRAD_META, True):
            return super().__torch_dispatch__(func, types, args, kwargs)


class _RememberingMode(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """torch's mode, which records one operator call at a time, with a memory for plain calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Call → its result; None if no similar result can be created.
        self._results: dict[tuple[object, ...], CallResult | None] = {}
        self._plain: dict[object, bool] = {}
        self.origin_of: FindOrigin = lambda tensor: None
        self.fixed: Mapping[int, torch.Tensor] = {}
        self.examples: Mapping[int, torch.Tensor] = {}
        self._has_marks = False
        self.overwritten: Overwritten = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if peek_interpreter_stack() is not None:
            with _ModeBelow(self.tracer, "fake"):
                return func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            return self._record(func, types, args, kwargs or {})
        with marked(self.tracer.graph, NO_GRAD_META, True):
            return self._record(func, types, args, kwargs or {})

    def _record(self, func: Any, types: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if func._schema.is_mutable:
            keep_overwritten(self.overwritten, (*args, *kwargs.values()))
        if torch.is_grad_enabled() and is_composite(func) and is_followed((args, kwargs)):
            with self:  # then the tensors that autograd keeps from its parts are recorded, too
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if func in MASKED and not all(mask := args[-1]):  # type: ignore[arg-type]
            with self:
                found = func(*unmasked(func, args), **kwargs)
            return tuple(result if is_read else None for result, is_read in zip(found, mask, strict=True))  # type: ignore[call-overload]
        # Forward may write to the result. Whether torch returns x itself differs between execution and its record.
        if func in _DROPOUTS and _drops_nothing(*args, **kwargs):
            return args[0]
        if func is _NATIVE_DROPOUT and _drops_nothing(*args, **kwargs):
            with self:
                return torch.ops.aten.clone.default(args[0]), torch.ops.aten.ones_like.default(
                    args[0], dtype=torch.bool
                )
        try:
            return self._record_call(func, types, args, kwargs)
        except Exception as cause:
            if (argument := _GIVE_SHAPES.get(func)) is not None:
                cause.add_note(argument)  # see sambaflow.tracing.failures
            raise

    def _record_call(self, func: Any, types: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if (static := known_lengths.FORMS.get(func)) is not None:
            find = self._supposed if kwargs.get("output_size") is None else self._known
            with self:
                made = static(find, *args, **kwargs)
            if made is not NotImplemented:
                return made
        if func is torch.ops.aten.masked_select.default:
            with self:
                return _select(*args)  # type: ignore[arg-type]
        plain = self._plain.get(func)
        if plain is None:
            plain = self._plain[func] = _is_plain(func)
        if not plain:
            name = func._schema.name
            if name in READS and (number := self._number(args[0])) is not None:
                return bool(number) if name == "aten::is_nonzero" else number
            if name == "aten::equal":
                sides = [side for side in map(self._known, args) if side is not None]
                if len(sides) == len(args):
                    return are_equal(sides)
            if func in ASSERTIONS:
                with self:
                    record_guard(args[0], True)  # type: ignore[arg-type]
                return None
            if func._schema.is_mutable and find_single(func) is not None:
                with self:
                    overwrite_each(func, args, kwargs)
                return None
            if name == "aten::ctc_loss":
                func, args = with_known_lengths(func, args, self._supposed)
            find = self._known if name in WRITES_INDEXED and not asks_how_many(*args[:3]) else self._supposed  # type: ignore[arg-type]
            if name in INDEXED and (positions := fold_masks(args[1], find)) is not None:  # type: ignore[arg-type]
                args = (args[0], positions, *args[2:])
            elif _depends_on_data(func) and (found := fold_call(func, args, kwargs, find)) is not None:
                return found
            return super().__torch_dispatch__(func, types, args, kwargs)
        with DisableTorchFunction():
            call = RecordedCall(self.tracer.tensor_tracker)
            node_args = call.add_all(args)
            node_kwargs = {key: call.add(value) for key, value in kwargs.items()}
        if not call.is_plain:
            made = super().__torch_dispatch__(func, types, tuple(map(_without_dead_wrapper, args)), kwargs)
            with DisableTorchFunction():
                if type(made) is FakeTensor and (stride := find_true_stride(func, args, made)) is not None:
                    return self._lay_out(made, stride)
            return made
        key = (func, *surrounding_state(), *kwargs, *call.key)
        if key not in self._results and (found := infer_result(func, args, kwargs)) is not None:
            dtype, shape = found
            form = TensorForm(dtype, shape, packed_stride(shape), 0)
            self._results[key] = CallResult(form, call.tensors[0].fake_device, -1)
        if key in self._results:
            if (result := self._results[key]) is None:
                return super().__torch_dispatch__(func, types, args, kwargs)
            with DisableTorchFunction():
                return self._repeat(func, result, node_args, node_kwargs, call.tensors)
        return self._first(func, types, args, kwargs, key, call.tensors)

    def _first(
        self, func: Any, types: Any, args: tuple[object, ...], kwargs: dict[str, object], key: tuple[object, ...],
        tensors: list[FakeTensor],
    ) -> object:  # fmt: skip
        """Record a new kind of call, by torch.

        A conversion to the dtype that a tensor already has returns the tensor itself. The device may hold it in another
        dtype, so the record keeps two tensors, and later uses of the converted one stay separate.
        """
        tracker = self.tracer.tensor_tracker
        former = tracker.get(tensors[0]) if tensors else None
        made = super().__torch_dispatch__(func, types, args, kwargs)
        with DisableTorchFunction():
            if func._schema.name == "aten::to" and former is not None and made is tensors[0]:
                mode = current_fake_mode()
                apart = CallResult(form_of(made), made.fake_device, 0)
                converted = FakeTensor(mode, apart.make(mode, tensors), made.fake_device)
                tracker[converted], tracker[made] = tracker[made], former
                self._results[key] = apart
                return converted
            if isinstance(made, FakeTensor) and (stride := find_true_stride(func, args, made)) is not None:
                made = self._lay_out(made, stride)
            self._results[key] = remember_result(made, tensors)
        return made

    def _lay_out(self, made: FakeTensor, stride: tuple[int, ...]) -> FakeTensor:
        """Return the same result with the strides of its execution."""
        mode = current_fake_mode()
        form = TensorForm(made.dtype, tuple(made.shape), stride, 0)
        described = CallResult(form, made.fake_device, -1).make(mode, ())
        laid = FakeTensor(mode, described, made.fake_device)
        tracker = self.tracer.tensor_tracker
        tracker[laid] = tracker[made]
        tracker[made].proxy.node.meta["val"] = described
        return laid

    def _number(self, tensor: Any) -> bool | int | float | None:
        """Return the number in a tensor, if it is known or assumed: see ``fold_constant``."""
        if (known := self._known(tensor)) is not None:
            return number_in(known)
        if tensor.dtype.is_floating_point or (supposed := self._known(tensor, supposing=True)) is None:
            return None
        number = number_in(supposed)
        with self:
            record_guard(tensor, number)  # type: ignore[arg-type]
        return number

    def _supposed(self, tensor: Any) -> torch.Tensor | None:
        """Return a known tensor, or integers or a mask from the example, which each run checks."""
        if (known := self._known(tensor)) is not None or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return known
        if (supposed := self._known(tensor, supposing=True)) is not None:
            with self:
                record_equality(tensor, supposed)
        return supposed

    def _known(self, tensor: Any, supposing: bool = False) -> torch.Tensor | None:
        """Return the tensor with its values, if they depend on no input, parameter or buffer: see ``fold_constant``."""
        if not isinstance(tensor, FakeTensor):
            return tensor if isinstance(tensor, torch.Tensor) else None
        entry = self.tracer.tensor_tracker.get(tensor)
        node = entry.proxy.node if entry is not None else self.origin_of(tensor)
        root: torch.nn.Module = self.tracer.root  # type: ignore[union-attr]
        if not self._has_marks:
            self._has_marks = True
            placeholders = [n for n in self.tracer.graph.nodes if n.op == "placeholder"]
            for key, values in ((FIXED_META, self.fixed), (EXAMPLE_META, self.examples)):
                for place, held in values.items():
                    placeholders[place].meta[key] = held
        return None if node is None else fold_constant(node, root, self.origin_of, supposing)

    def _repeat(
        self, func: Any, result: CallResult, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> FakeTensor:
        mode = current_fake_mode()
        described = result.make(mode, tensors)
        made = FakeTensor(mode, described, result.device)
        graph = self.tracer.graph
        name = graph._target_to_str(func.overloadpacket.__name__)
        node = graph.create_node("call_function", func, args, kwargs, name)
        # A tensor over the same memory, whose metadata later in-place operators on ``made`` do not change.
        node.meta["val"] = described
        self.tracer.tensor_tracker[made] = proxy_tensor._ProxyTensor(fx.Proxy(node, self.tracer), None)
        return made


def _drops_nothing(x: Any, p: Any, train: Any = True) -> bool:
    return 0 <= p <= 1 and (p == 0 or not train or not x.numel())


def _is_plain(func: Any) -> bool:
    return (
        isinstance(func, OpOverload)
        and not func._schema.is_mutable
        and func._schema.name not in _NEVER
        and len(func._schema.returns) == 1
        and not _depends_on_data(func)
    )


def _depends_on_data(func: Any) -> bool:
    """Return whether the result or shape of ``func`` depends on values of its operands, as that of ``nonzero`` does."""
    return isinstance(func, OpOverload) and any(tag in func.tags for tag in _NEEDS_DATA)
