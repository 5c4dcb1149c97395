"""Private interfaces of torch that the compiler uses: in recording, in native code generation and in differentiation.

torch is pinned to one exact version. ``tests/unit/test_torch_private.py`` reports what an upgrade lacks or has changed.

- Splits: a minimal cut decides what a forward saves. If torch's cut refuses a graph, ``split_saving`` saves every value
  that the backward reads: correct for any graph, but optimal for none.
"""

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch._prims_common
from torch import fx
from torch._ops import OpOverload as OpOverload
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch._subclasses.fake_impls import register_op_impl as register_op_impl
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as in_kernel_invocation_manager
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.utils._mode_utils import no_dispatch as no_dispatch

from rdukit.errors import UnsupportedOperator
from rdukit_compiler.backend.inductor_repairs import OPTIONS, repaired

prims_common = torch._prims_common

#: A context in which torch functions call neither overrides of subclasses nor modes.
DisableTorchFunction = torch._C.DisableTorchFunction
#: The function that ``torch.no_grad`` calls, and that a record keeps.
set_grad_enabled = torch._C._set_grad_enabled

has_onednn: bool = torch._C._has_mkldnn

#: torch.func: whether a transformation is active, and tensors that one wraps or has left behind.
are_transforms_active = torch._C._are_functorch_transforms_active
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack
unwrap_if_dead = torch._C._functorch.unwrap_if_dead
is_functorch_wrapped_tensor = torch._C._functorch.is_functorch_wrapped_tensor

all_operator_names = torch._C._dispatch_get_all_op_names
has_kernel_for_key = torch._C._dispatch_has_kernel_for_dispatch_key
#: Whether attention may use these forms, for every device.
get_flash_sdp_enabled = torch._C._get_flash_sdp_enabled
get_math_sdp_enabled = torch._C._get_math_sdp_enabled

#: Name of a logger, and the beginning of modules' names.
FAKE_TENSOR_LOGGER: Final = "torch._subclasses.fake_tensor"
FUNCTORCH: Final = "torch._functorch"
logger = logging.getLogger(__name__)

#: Elements of a loop for which another thread pays: some 10 µs of work.
_LEAST_CHUNK: Final = 16384


def current_fake_mode() -> Any:
    """Return the active mode of fake tensors, or None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Make operators decompose as without oneDNN while tracing. Running kernels still use oneDNN.

    ``torch.backends.mkldnn.flags`` does the same and touches settings of other devices, which warns.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def trace_aten(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], forms: Mapping[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """Record the ATen calls of ``function(list of tensors)``, autograd's included, on fake tensors.

    Every value of the record is stored: tensors that torch only marks as conjugated, negated or zero are computed.

    Args:
        forms: operator → function whose calls are recorded instead.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with quiet_failures():
        return make_fx(function, tracing_mode="fake", decomposition_table={**_MATERIALISED, **(forms or {})})(*inputs)


def _conjugate(value: torch.Tensor | complex) -> torch.Tensor:
    """Conjugate a tensor, or a number that the program multiplies with."""
    if isinstance(value, torch.Tensor):
        return torch.conj_physical(value)
    return torch.full((), value.conjugate(), dtype=torch.complex64)


def _zeros(size: Sequence[int], **options: Any) -> torch.Tensor:
    return torch.zeros(size, **options)


def _whole_power(base: complex, exponent: torch.Tensor) -> Any:
    """Raise an integer to the power of integers. Inductor's C interface passes the base as a float, and misreads the
    float results as integers.
    """
    if not isinstance(base, int) or exponent.is_floating_point() or exponent.is_complex():
        return NotImplemented
    return torch.pow(torch.full_like(exponent, base, dtype=torch.int64), exponent)


def _drawn(value: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    """Draw zeros and ones from uniform numbers, as other random operators do: native kernels then draw the same."""
    return (torch.rand(value.shape, dtype=torch.float32) < p).to(value.dtype)


#: Operators that only mark a tensor, or that kernels compute wrongly → a function that computes the result.
_MATERIALISED: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.ops.aten.pow.Scalar: _whole_power,
    torch.ops.aten._conj.default: _conjugate,
    torch.ops.aten._neg_view.default: torch.neg,
    torch.ops.aten._efficientzerotensor.default: _zeros,
    torch.ops.aten.bernoulli.p: _drawn,
}


def trace_functional(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Record as ``trace_aten`` does, but without operators that overwrite a tensor, which torch's own formulas contain.

    Readers of the record, such as the split into forward and backward, follow the flow of data and ignore the order.

    Raises:
        UnsupportedOperator: an operator overwrites one of ``inputs``, or has no functional form.
    """
    traced = trace_aten(function, inputs)
    if (overwriting := find_overwriting(traced.graph)) is None:
        return traced
    _drop_unread(traced)
    without = torch.func.functionalize(traced, remove="mutations")
    cause: Exception | None = None
    try:
        traced = trace_aten(without, [tensor.detach() for tensor in inputs])
        overwriting = find_overwriting(traced.graph)
    except RuntimeError as refusal:  # torch has no such form
        cause = refusal
    if overwriting is None:
        return traced
    raise UnsupportedOperator(
        f"operator {overwriting.target} overwrites a tensor, and no variant of it returns a new one; use an operator "
        "without underscore or out="
    ) from cause


def _drop_unread(traced: fx.GraphModule) -> None:
    """Drop unread calls without effect, such as a call that failed and was repeated in another form: it would fail
    again.
    """
    for node in reversed(traced.graph.nodes):
        if node.op == "call_function" and not node.users and not _overwrites(node):
            traced.graph.erase_node(node)
    traced.recompile()


def find_overwriting(graph: fx.Graph) -> fx.Node | None:
    """Find the first call that overwrites one of its arguments: in place, in lists, as ``out``, or in a wrapper."""
    return next((node for node in graph.nodes if _overwrites(node)), None)


def _overwrites(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        inside = [argument for argument in node.args if isinstance(argument, torch._ops.OpOverload)]
        return any(overload._schema.is_mutable for overload in inside)
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def split_joint(joint: fx.GraphModule, forward_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint graph (placeholders ``primals_…`` then ``tangents_…``) into forward and backward.

    The forward returns its outputs and then the values saved for backward; the backward takes the saved values, by
    their names, and then the tangents. A minimal cut decides which values are saved and which are cheap enough to
    recompute.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor):
        # Comparisons with the largest element: recomputed values may differ from it in the last bit.
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        return min_cut_rematerialization_partition(
            joint, (), num_fwd_outputs=forward_outputs, static_lifetime_input_indices=[]
        )
    except AssertionError as refusal:  # it assumes properties that only its own tracer ensures
        logger.debug("no minimal cut reason=%s; saving all tensors that backward reads", refusal)
        return split_saving(joint, forward_outputs)


class _CodeWritten(Exception):
    """Exception that carries inductor's code out of its ahead-of-time compile, before the C++ compiler is called."""


def write_code(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], own: Mapping[Any, list[str]], threads: int
) -> tuple[str, str]:  # fmt: skip
    """Return the C++ that inductor writes ahead of time for a flat module: its wrapper, and its kernels.

    Args:
        own: operators of ours, with the declarations of the C functions that compute them.
        threads: number of threads for which long loops are split.
    """
    from torch._inductor import aot_compile, codecache

    def intercept(_: Any, graph: object, wrapper: str, kernels: str, *rest: object, **more: object) -> None:
        raise _CodeWritten(wrapper, kernels)

    compiler = codecache.AotCodeCompiler
    former = compiler.__dict__["compile"]
    with torch.no_grad(), _instruction_sets_by_flags(), repaired():
        compiler.compile = classmethod(intercept)  # type: ignore[assignment,arg-type,method-assign]
        try:
            aot_compile(
                module,
                tuple(inputs),
                options={
                    "aot_inductor.package": True,
                    "aot_inductor.custom_ops_to_c_shims": dict(own),
                    "cpp.threads": threads,
                    "cpp.min_chunk_size": _LEAST_CHUNK,
                    # Fused operators round to bf16 where separate ones do, so that a library's results equal the
                    # portable form's.
                    "emulate_precision_casts": True,
                    **OPTIONS,
                },
            )
        except BaseException as raised:
            written = _find_written(raised)
            if written is None:
                raise
            wrapper, kernels = written.args
            return str(wrapper), str(kernels)
        finally:
            compiler.compile = former  # type: ignore[method-assign]
    raise AssertionError("inductor compiled without writing code")


@contextlib.contextmanager
def _instruction_sets_by_flags() -> Iterator[None]:
    """Make inductor take the processor's flags at their word; it would compile and load a program for each set."""
    import torch._inductor.config as config
    from torch._inductor.cpu_vec_isa import VecISA

    former = VecISA.check_build
    VecISA.check_build = lambda self, code: True  # type: ignore[method-assign]
    try:
        with config.patch({"cpp.vec_isa_ok": True}):
            yield
    finally:
        VecISA.check_build = former  # type: ignore[method-assign]


def _find_written(raised: BaseException | None) -> _CodeWritten | None:
    while raised is not None and not isinstance(raised, _CodeWritten):
        raised = getattr(raised, "inner_exception", None) or raised.__cause__ or raised.__context__
    return raised


def compile_command(source: Path, target: Path) -> list[str]:
    """Return the command that compiles ``source``, written by ``write_code``, to the object file ``target``."""
    import torch._inductor.config as config
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with _instruction_sets_by_flags(), config.patch({"aot_inductor.enable_line_tables": False}):
        builder = CppBuilder(
            name=target.stem,
            sources=[str(source)],
            output_dir=str(target.parent),
            BuildOption=CppTorchDeviceOptions(
                vec_isa=pick_vec_isa(), device_type="cpu", aot_mode=True, compile_only=True
            ),
        )
        command = shlex.split(builder.get_command_line())
    command[command.index("-o") + 1] = str(target)
    return command


def split_saving(joint: fx.GraphModule, forward_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint graph by saving every value that the backward reads.

    Args:
        joint: placeholders ``primals_…`` and then ``tangents_…``; the first ``forward_outputs`` outputs are forward's.
    """
    (result,) = [node for node in joint.graph.nodes if node.op == "output"]
    leaving: list[Any] = list(result.args[0])
    made, gradients = leaving[:forward_outputs], leaving[forward_outputs:]
    placeholders = [node for node in joint.graph.nodes if node.op == "placeholder"]
    primals = [node for node in placeholders if node.name.startswith("primals_")]
    tangents = [node for node in placeholders if node.name.startswith("tangents_")]
    forward = _ancestors(made)
    # A tuple of tensors is saved through the tensors that are taken out of it.
    forward |= {n for n in joint.graph.nodes if _takes_one(n) and n.args[0] in forward}
    backward = [n for n in joint.graph.nodes if n in _ancestors(gradients) - forward and n.op == "call_function"]
    read = dict.fromkeys(i for node in [*backward] for i in node.all_input_nodes)
    read |= dict.fromkeys(n for n in gradients if isinstance(n, fx.Node))
    saved = [n for n in read if n in forward or n in primals]
    inside = [n for n in joint.graph.nodes if n in forward and n.op == "call_function"]
    return (
        _graph(joint, primals, inside, [*made, *saved]),
        _graph(joint, [*saved, *tangents], backward, gradients),
    )


def _ancestors(nodes: list[Any]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = [node for node in nodes if isinstance(node, fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _takes_one(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _graph(joint: fx.GraphModule, inputs: list[fx.Node], nodes: list[fx.Node], outputs: list[Any]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, lambda old: copies[old])
    graph.output(tuple(copies[n] if isinstance(n, fx.Node) else n for n in outputs))
    return fx.GraphModule(joint, graph)


@contextlib.contextmanager
def quiet_failures() -> Iterator[None]:
    """Suppress torch's log of failures on tensors without data, while the block lasts: the caller reports them."""
    log = logging.getLogger(FAKE_TENSOR_LOGGER)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
