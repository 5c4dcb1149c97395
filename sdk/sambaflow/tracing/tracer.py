"""Tracing: run a model's forward once on tensors without data, and record the graph.

Forward gets torch tensors, so it takes the same branches as on the host. Stand-ins of the same shape and dtype replace
parameters, so tracing does not change weights.
"""

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch import nn

from rdukit.errors import RdukitError, TraceError, UnsupportedOperator
from rdukit.settings import resolve
from rdukit.telemetry.spans import span
from rdukit_compiler import SUPPOSE_EXAMPLE, ModelGraph
from sambaflow.samba.conversion import name_added_parameters_
from sambaflow.samba.directives import module_labels, recording
from sambaflow.samba.sambatensor import SambaTensor, SambaTensors, unwrap
from sambaflow.tracing.earlier_traces import origin_of, remember_traced, tracker_of_trace
from sambaflow.tracing.failures import Way, explain_failure, record_some_way
from sambaflow.tracing.module_state import (
    Grown,
    ModuleState,
    Replaced,
    assigned_buffers,
    check_fixed,
    check_overwritten,
    check_repeats,
    checked_buffers,
    fixed_buffers,
    memory_of,
    state_refusal,
    unsaved_state,
)
from sambaflow.tracing.scans import traced_scans
from sambaflow.tracing.tied_weights import untied
from sambaflow.tracing.torch_private import FAKE_TENSORS, replaced
from sambaflow.tracing.values import as_input, as_parameter, auxiliary_outputs, name_auxiliary, traced_values

if TYPE_CHECKING:
    from sambaflow.tracing.graph_inputs import Tensors

#: Packages of torch whose modules hold packed weights.
_QUANTIZED: Final = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")


@dataclass(slots=True)
class TracedModel:
    """A traced model: its graph, and the program's objects for its names."""

    graph: ModelGraph
    outputs: tuple[SambaTensor, ...]
    inputs: dict[str, SambaTensor]
    #: Parameters and buffers of the model, and constants that forward used, by symbol name.
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    #: Symbols with nonzero values that checkpoints lack → their names in the module.
    unsaved: dict[str, str] = field(default_factory=dict)
    #: Places that the model ties, but that have separate parameters in the graph: path → symbol.
    apart: Mapping[str, str] = field(default_factory=dict)


@span("trace graph")
def trace_model(
    model: nn.Module, inputs: Any, name: str, exposed: Collection[str] = (), apart: Mapping[str, str] | None = None
) -> TracedModel:
    """Trace ``model`` on named ``inputs``: one SambaTensor, or tuples, lists and dicts of them.

    Args:
        exposed: auxiliary tensors of an earlier trace that the program kept; they are not exposed again.
        apart: places that the model ties, and that get separate parameters in the graph: path → symbol.
    Raises:
        TraceError: an input has no name or two share one, or forward does what a static graph cannot.
        UnsupportedOperator: forward uses something that cannot be compiled.
    """
    name_added_parameters_(model)
    with untied(model, apart or {}) as tied:
        traced = _trace_again_if_changed(model, inputs, name, exposed)
    traced.state.update(tied)
    traced.apart = apart or {}
    return traced


def _trace_again_if_changed(model: nn.Module, inputs: Any, name: str, exposed: Collection[str]) -> TracedModel:
    before = ModuleState(model)
    traced = _trace(model, inputs, name, exposed)
    if changed := before.changed():
        after = ModuleState(model)
        try:
            again = _trace(model, inputs, name, exposed)
        except RdukitError as cause:
            raise TraceError(state_refusal(changed, f"cannot be traced again with that ({cause.message})")) from cause
        finally:
            after.restore()
        check_repeats((traced.graph, traced.state), (again.graph, again.state), changed)
        return again  # the graph of later traces: the first may create tensors that forward keeps, such as tables
    return traced


def _trace(
    model: nn.Module, inputs: Any, name: str, exposed: Collection[str], growths: Sequence[Collection[str]] = ()
) -> TracedModel:  # fmt: skip
    """Trace one call of forward, and repeat it if buffers grow; ``growths``: symbols of grown buffers, for each
    repetition.
    """
    from rdukit_compiler import DTYPE_READERS_META, model_graph_from_fx
    from sambaflow.tracing.graph_inputs import Tensors, check_grown, find_sources, grow_buffers

    _check_modules(model)
    tensors = Tensors(_named_inputs(inputs), dict(model.named_parameters()), dict(model.named_buffers()))
    tensors.refuse_sparse()
    call = _Call(model, inputs, name, tensors, exposed)
    recorded = call.record()
    sources = find_sources(recorded, name, model, tensors)
    if call.grown:
        # Tensors that the program keeps from this trace use the present tables.
        tables = grow_buffers(call.grown, recorded, sources, len(growths))
        remember_traced(name, call.tracker, {**sources, **tables})
        return _trace(model, inputs, name, exposed, [*growths, {table.value.name for table in tables.values()}])
    listed = [source.value for source in sources.values()]
    state = {source.value.name: source.tensor for source in sources.values() if source.tensor is not None}
    constants = {str(node.target): source.value.name for node, source in sources.items() if node.op == "get_attr"}
    symbols = {id(tensor): symbol for symbol, tensor in state.items()}
    updated = [symbols[id(buffer)] for buffer, _ in call.assigned]
    readers = recorded.meta[DTYPE_READERS_META]
    graph = name_auxiliary(model_graph_from_fx(name, recorded.graph, listed, constants, updated, readers))
    if not graph.outputs:
        raise TraceError(f"forward of {name!r} returns no tensor; it must return a tensor, or a tuple or list of them")
    check_fixed(recorded.graph, sources, graph)
    check_overwritten(graph, state)
    check_grown(graph, growths)
    returned = graph.outputs[: len(graph.outputs) - len(recording.auxiliary)]
    outputs = tuple(_output_handle(graph, output) for output in returned)
    remember_traced(name, call.tracker, sources)
    return TracedModel(graph, outputs, tensors.inputs, state, unsaved_state(model, state, constants))


class _Call:
    """Call of a model's forward on stand-ins, and its results: buffers, tensors and the modules that ran."""

    #: Tensors of the trace, weakly, and their proxies.
    tracker: Mapping[Any, Any]

    def __init__(self, model: nn.Module, inputs: Any, name: str, tensors: "Tensors", exposed: Collection[str]) -> None:
        self.model, self.inputs, self.name, self.tensors, self.exposed = model, inputs, name, tensors, exposed
        #: Paths of the running modules, outermost first; after a failure, of those that ran then.
        self.running: list[str] = []
        #: Buffers that forward assigned, and their new values.
        self.assigned: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.grown: list[Grown] = []

    def record(self) -> torch.fx.GraphModule:
        """Record the call.

        Raises:
            RdukitError: explains an exception of forward.
        """
        fixed = fixed_buffers(self.model, self.tensors.buffers, self.tensors.first_buffer)
        checked = checked_buffers(self.model, self.tensors.buffers, self.tensors.first_buffer)
        examples = (_examples(self.tensors.inputs) if resolve(SUPPOSE_EXAMPLE) else {}) | checked
        try:
            return record_some_way(lambda way: self._record(way, fixed, examples))
        except RdukitError:
            raise
        # Any exception of the program's forward is a failure of the trace.
        except Exception as cause:
            raise explain_failure(cause, self.name, self.running) from cause

    def _record(
        self, way: Way, fixed: Mapping[int, torch.Tensor], examples: Mapping[int, torch.Tensor]
    ) -> torch.fx.GraphModule:  # fmt: skip
        from rdukit_compiler import FakeMode, record_forward, without_dynamo

        self.running.clear()
        originals = self.tensors.in_order()
        followed = [t.requires_grad for t in originals]
        with contextlib.nullcontext() if way.imports_all else without_dynamo():
            with FakeMode(allow_non_fake_inputs=True):
                values = [torch.empty(tuple(t.shape), dtype=t.dtype) for t in originals]
            if way.follows_gradients:
                values = [v.requires_grad_(follows) for v, follows in zip(values, followed, strict=True)]
            where = lambda: self.running[-1] if self.running else None  # noqa: E731
            forward = lambda flat: self._forward(flat)  # noqa: E731, PLW0108 torch counts a method's own argument as well
            return record_forward(forward, values, origin_of, followed, where, fixed, examples)

    def _forward(self, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        """Call forward on the stand-ins ``flat`` of all tensors; return its outputs, then buffers' new values."""
        from rdukit_compiler import check_frozen

        self.tracker = tracker_of_trace()
        named, parameters, buffers = self.tensors.inputs, self.tensors.parameters, self.tensors.buffers
        given = {id(o): as_input(v, o) for o, v in zip(named.values(), flat, strict=False)}
        rest = flat[len(named) :]
        for parameter, value in zip(parameters.values(), rest, strict=False):
            as_parameter(value, parameter)
        stand_ins = {id(t): s for t, s in zip([*parameters.values(), *buffers.values()], rest, strict=True)}
        args, kwargs = _call_arguments(self.inputs, lambda t: given[id(t)])
        with (
            _module_paths(self.model, self.running), _stand_ins(self.model, stand_ins) as places,
            _unwrapped(self.model), _torch_while_traced(self.model, self.name, parameters, stand_ins),
        ):  # fmt: skip
            made = self.model(*args, **kwargs)
            self.assigned, self.grown = assigned_buffers(places)
            check_frozen({path: stand_ins[id(parameter)] for path, parameter in parameters.items()})
        returned = [unwrap(item) for item in flatten_tensors(made)] + auxiliary_outputs(self.exposed)
        return [*returned, *(new for _, new in self.assigned), *(each.value for each in self.grown)]


@contextlib.contextmanager
def _torch_while_traced(
    model: nn.Module, name: str, parameters: Mapping[str, nn.Parameter], stand_ins: Mapping[int, torch.Tensor]
) -> Iterator[None]:
    """Replace functions of torch while a forward is traced; ``stand_ins``: id of a parameter or buffer → its
    stand-in.
    """
    from sambaflow.tracing.hooks import recorded_hooks
    from sambaflow.tracing.static_forms import device_randomness, static_forms

    with (
        traced_scans(),
        static_forms(model),
        recorded_hooks(model, parameters, stand_ins),
        device_randomness(name),
        traced_values(),
        # Libraries ask torch whether a compile is active (transformers: before it reads a mask's values).
        torch.compiler._compile_session_context(),
    ):
        yield


def flatten_tensors(value: Any) -> list[Any]:
    """Return tensors inside nested tuples, lists and dicts, depth first; ``None`` and other values are left out."""
    if isinstance(value, SambaTensor | torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in flatten_tensors(item)]
    if isinstance(value, list | tuple | SambaTensors):
        return [tensor for item in value for tensor in flatten_tensors(item)]
    return []


def _named_inputs(inputs: Any) -> dict[str, SambaTensor]:
    named: dict[str, SambaTensor] = {}
    for position, tensor in enumerate(flatten_tensors(inputs)):
        if not isinstance(tensor, SambaTensor):
            raise TraceError(
                f"input {position} is a torch tensor without a name; make it with samba.from_torch_tensor(t, name='…')"
            )
        if not tensor.has_name:
            raise TraceError(
                f"input {position} of shape {list(tensor.shape)} has no name; pass name='…' when making it"
            )
        if named.setdefault(tensor.sn_name, tensor) is not tensor:
            raise TraceError(f"two inputs are called {tensor.sn_name!r}; names of a graph's inputs must differ")
    return named


def _examples(named: Mapping[str, SambaTensor]) -> dict[int, torch.Tensor]:
    """Return position → value of the inputs that have values."""
    return {place: t.torch_tensor().detach() for place, t in enumerate(named.values()) if t.has_data}


def _check_modules(model: nn.Module) -> None:
    """Refuse modules whose parameters cannot be replaced by stand-ins."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.parameters()):
            raise UnsupportedOperator(
                f"module {path or 'forward'!r} is a {type(module).__name__} of torch.jit, whose parameters cannot be "
                "traced; use the original module (functions of torch.jit.script may stay)"
            )
        if type(module).__module__.startswith(_QUANTIZED):
            raise UnsupportedOperator(
                f"module {path or 'forward'!r} is quantized ({type(module).__module__}.{type(module).__name__}), and "
                "its weights are packed for the CPU; compile the original model, and choose "
                "the precision at compile (--graphamp-preset)"
            )


@contextlib.contextmanager
def _stand_ins(model: nn.Module, replaced: Mapping[int, torch.Tensor]) -> Iterator[list[Replaced]]:
    """Replace parameters and buffers by stand-ins in all places: weights may be shared.

    ``torch.func.functional_call`` does not restore a module that is reachable by two paths.
    """
    places: list[Replaced] = []
    try:
        for path, module in model.named_modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table in tables:
                for key, tensor in table.items():
                    if tensor is not None and id(tensor) in replaced:
                        stand_in = replaced[id(tensor)]
                        full_path = f"{path}.{key}".lstrip(".")
                        places.append(Replaced(table, key, tensor, stand_in, memory_of(stand_in), full_path))
                        table[key] = stand_in
        yield places
    finally:
        for place in places:
            place.table[place.key] = place.original


@contextlib.contextmanager
def _unwrapped(model: nn.Module) -> Iterator[None]:
    """Disable wrappers that do not change a computation while tracing.

    ``nn.DataParallel`` calls its module, as without GPUs: the device has one copy of it. ``record_function`` has no
    effect: torch's profiler would import half of torch. ``save_on_cpu`` does not move tensors.

    Raises:
        TraceError: a module is wrapped in ``DistributedDataParallel``, which averages outside of forward.
    """
    from torch.autograd.graph import saved_tensors_hooks
    from torch.autograd.profiler import record_function

    from sambaflow.tracing.hooks import enter_hooks, leave_hooks

    for path, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TraceError(
                f"{f'the module {path!r}' if path else 'the model'} is wrapped in DistributedDataParallel, which "
                "averages gradients outside forward and thus outside every graph; use the module itself (.module), "
                "compile with --data-parallel and call samba.session.run(…, data_parallel=True)"
            )
    parallel = [module for module in model.modules() if isinstance(module, nn.DataParallel)]
    with replaced(
        (saved_tensors_hooks, "__enter__", enter_hooks),
        (saved_tensors_hooks, "__exit__", leave_hooks),
        *((holder, "to_dlpack", _refuse_memory) for holder in (torch, torch.utils.dlpack)),
        (torch.UntypedStorage, "resize_", _refuse_resizing),
        (record_function, "__enter__", lambda self: self),
        (record_function, "__exit__", lambda self, *raised: None),
        *((module, "device_ids", []) for module in parallel),
    ):
        yield


_resize = torch.UntypedStorage.resize_


def _refuse_resizing(storage: Any, size: Any) -> Any:
    """Refuse as ``_refuse_memory`` does; torch itself may resize, where it stands in for an empty tensor."""
    if str(sys._getframe(1).f_globals.get("__name__")).startswith(FAKE_TENSORS):
        return _resize(storage, size)
    return _refuse_memory()


def _refuse_memory(*_: Any) -> NoReturn:
    """Refuse an access to memory, which a tensor of a trace lacks: it would crash the process."""
    raise UnsupportedOperator(
        "forward uses a tensor's memory (to_dlpack) or resizes it (untyped_storage().resize_), but a traced tensor "
        "has no memory; use the tensor itself, or do so outside forward"
    )


def _call_arguments(inputs: Any, replace: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``inputs`` as forward's arguments: a dict gives keyword arguments, a tuple or list positional ones."""

    def walk(value: Any) -> Any:
        if isinstance(value, SambaTensor):
            return replace(value)
        if isinstance(value, SambaTensors):
            return {key: replace(tensor) for key, tensor in dict.items(value)}
        if isinstance(value, Mapping):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(item) for item in value)
        return value

    walked = walk(inputs)
    if isinstance(walked, dict):
        return (), walked
    if isinstance(walked, list | tuple):
        return tuple(walked), {}
    return (walked,), {}


@contextlib.contextmanager
def _module_paths(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Tag each recorded operator with the path of the innermost running module.

    ``running`` holds the paths of the running modules, outermost first; after a failure they stay.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    from rdukit_compiler import MODULE_META

    proxy_mode = get_proxy_mode()
    if proxy_mode is None:
        yield
        return
    graph = proxy_mode.tracer.graph
    handles = []
    begun: list[tuple[int, dict[str, str]]] = []

    def starter(path: str) -> Any:
        def before(module: nn.Module, args: Any) -> None:
            begun.append((len(graph.nodes), module_labels(module)))
            running.append(path)

        return before

    def tagger(path: str) -> Any:
        def after(module: nn.Module, args: Any, output: Any) -> None:
            while running.pop() != path:  # a module whose exception the program caught
                begun.pop()
            start, labels = begun.pop()
            count = len(graph.nodes) - start
            for node, _ in zip(reversed(graph.nodes), range(count), strict=False):
                node.meta.setdefault(MODULE_META, path)
            recording.label(labels, count)

        return after

    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(starter(path)))
        handles.append(module.register_forward_hook(tagger(path)))
    try:
        with recording.of(graph):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _output_handle(graph: ModelGraph, name: str) -> SambaTensor:
    value = graph.values[name]
    handle = SambaTensor(shape=value.shape, dtype=getattr(torch, value.dtype), name=name)
    handle._is_output = True
    return handle
