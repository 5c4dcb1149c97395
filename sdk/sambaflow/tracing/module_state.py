"""State that forward changes in a module: assigned buffers become part of the graph, other state must not change it.

A graph is traced once and run many times, so state that one call of forward leaves for the next must be in the graph. A
buffer that forward assigns becomes a buffer that the graph updates. A buffer that gets another shape, such as a table
that grows with the first long input, grows before the trace, as in a program's first call. Anything else that changes,
such as a Python number, is found by comparing the module before and after. Then forward is traced a second time, and
must give the same graph.

Forward may read the values of buffers that it never changes, if they are integers or masks. Audio codecs keep the
padding of a convolution in such buffers. Those that are not part of a checkpoint (``persistent=False``) are computed
from a module's settings, so the device has the trace's values. A checkpoint may change the others, such as the mask of
a pruned layer: each run checks them.
"""

import functools
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import getitem
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import fx, nn

from rdukit.errors import TraceError
from rdukit.pef.kernel import rename_references
from rdukit_compiler import READ_META, ModelGraph, ValueKind
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.tracing.earlier_traces import Source
from sambaflow.tracing.program_state import Cell, Names, is_library, reachable_places
from sambaflow.tracing.torch_private import FakeTensor, OpOverload

#: Attributes of a module that torch uses internally, and that change during a trace.
_TORCHS: Final = ("_forward_", "_backward_", "_state_dict_", "_load_state_dict_", "_is_full_backward_hook")
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, np.generic)
#: Types of objects that are not state, or that are checked elsewhere.
_OPAQUE: Final = (nn.Module, torch.Tensor, SambaTensor, type, ModuleType, logging.Logger, FunctionType, MethodType)
#: Maximum depth to which lists, dicts and objects are followed.
_DEPTH: Final = 4
#: Containers of more items are not followed: tables, not state.
_MAX_ITEMS: Final = 4096
#: Arrays of more bytes are tables, too.
_MAX_ARRAY_BYTES: Final = 1 << 24
_MAX_CONSTANT_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Replaced:
    """A parameter's or buffer's place in a module while a stand-in replaces it."""

    table: MutableMapping[str, torch.Tensor | None]
    key: str
    original: torch.Tensor
    stand_in: torch.Tensor
    #: Version of the stand-in's memory before forward runs.
    memory: int
    path: str


def assigned_buffers(places: Sequence[Replaced]) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list["Grown"]]:
    """Return buffers that forward assigned, as (the program's buffer, its new value in the trace), and the buffers that
    grew.

    Raises:
        TraceError: forward assigned a parameter, removed a buffer, or assigned only one of two names.
    """
    grown: list[Grown] = []
    found: dict[int, tuple[Replaced, torch.Tensor]] = {}
    kept: set[int] = set()
    for place in places:
        if memory_of(place.stand_in) != place.memory:
            raise TraceError(
                f"forward assigns .data of {place.path!r}, which cannot be traced; assign the buffer itself, or write "
                "into it in place"
            )
        new = place.table.get(place.key)
        if new is place.stand_in:
            kept.add(id(place.original))
            continue
        if isinstance(place.original, nn.Parameter):
            raise TraceError(
                f"forward assigns parameter {place.path!r}; only the optimizer changes parameters: compute with "
                "another tensor, or keep the value in a buffer"
            )
        if new is None:
            raise TraceError(_changed_form(place, "None"))
        if (new.shape, new.dtype) != (place.original.shape, place.original.dtype):
            grown.append(Grown(place, new))
            continue
        found[id(place.original)] = place, new
    for key, (place, _) in found.items():
        if key in kept:
            raise TraceError(f"forward assigns buffer {place.path!r}, which other names share; write into it in place")
    return [(place.original, new) for place, new in found.values()], grown


@dataclass(frozen=True, slots=True)
class Grown:
    """A buffer to which forward gave another shape or dtype, such as a table that a longer input needs.

    As on the host, it happens once: the buffer gets its new value before forward is traced again.
    """

    place: Replaced
    value: torch.Tensor

    def keep(self, node: fx.Node, known: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor:
        """Set the buffer to the value that ``node`` computes from ``known``, buffers whose values the host has.

        Returns:
            The value.

        Raises:
            TraceError: the value depends on inputs or parameters.
        """
        now = f"{self.value.dtype} {list(self.value.shape)}"
        if self.place.original.is_meta:
            value = torch.empty(self.value.shape, dtype=self.value.dtype, device="meta")
        else:
            try:
                value = _computed(node, known)
            except _UnknownValue as cause:
                raise TraceError(
                    f"{_changed_form(self.place, now)}, unless its value depends on buffers only"
                ) from cause
        self.place.table[self.place.key] = value
        return value


class _UnknownValue(Exception):
    """A value depends on tensors that the host does not know during a trace."""


def _computed(node: fx.Node, known: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor:
    """Compute a node of a recorded graph on the host, with its ancestors and writes into their memory.

    The tensors of ``known`` are not changed.
    """
    writes: dict[fx.Node, list[fx.Node]] = {}
    for each in node.graph.nodes:
        for shared, is_written in _shared_by(each):
            if is_written:
                writes.setdefault(_owner_of(shared), []).append(each)
    needed: set[fx.Node] = set()
    todo = [node]
    while todo:
        each = todo.pop()
        if each not in needed:
            needed.add(each)
            todo.extend(() if each in known else each.all_input_nodes)
            todo.extend(writes.get(_owner_of(each), ()))
    made: dict[fx.Node, Any] = {each: value.clone() if each in writes else value for each, value in known.items()}
    with torch.no_grad():
        for each in node.graph.nodes:
            if each not in needed or each in known:
                continue
            if each.op == "get_attr":
                assert node.graph.owning_module is not None
                value = getattr(node.graph.owning_module, str(each.target))
                made[each] = value.clone() if each in writes else value
            elif each.op == "call_function" and callable(each.target):
                args, kwargs = (fx.map_arg(part, made.__getitem__) for part in (each.args, each.kwargs))
                made[each] = each.target(*args, **kwargs)
            else:
                raise _UnknownValue(each.name)
    value = made[node]
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        raise _UnknownValue(node.name)
    return value.detach().clone()


def _owner_of(node: fx.Node) -> fx.Node:
    """Return the node that created the memory of ``node``'s result: itself, unless the result may be a view."""
    while sources := node.all_input_nodes if node.target is getitem else [at for at, _ in _shared_by(node)]:
        node = sources[0]
    return node


def _shared_by(node: fx.Node) -> list[tuple[fx.Node, bool]]:
    """Return the arguments that an operator may return views of, or writes into, each with whether it is written."""
    shared = []
    for place, item in enumerate(node.target._schema.arguments if isinstance(node.target, OpOverload) else ()):
        value = node.args[place] if place < len(node.args) else node.kwargs.get(item.name)
        if item.alias_info is not None:
            values = value if isinstance(value, list | tuple) else [value]
            shared += [(each, item.alias_info.is_write) for each in values if isinstance(each, fx.Node)]
    return shared


def _changed_form(place: Replaced, now: str) -> str:
    return (
        f"forward changes buffer {place.path!r} to {now} from {place.original.dtype} {list(place.original.shape)}; a "
        "buffer must keep its shape and dtype"
    )


def memory_of(tensor: torch.Tensor) -> int:
    """Return a key that identifies a tensor's memory."""
    return int(tensor.untyped_storage()._cdata)


class ModuleState:
    """State of modules and their code at one moment: attributes, globals, and the contents of their containers."""

    def __init__(self, model: nn.Module) -> None:
        #: Path, container, and a shallow copy of its contents.
        self._kept: list[tuple[str, Any, Any]] = []
        seen: set[int] = set()
        for path, module in model.named_modules():
            self._keep(path or type(model).__name__, module, seen, _DEPTH)
        for path, place in reachable_places(model):
            self._keep(path, place, seen, _DEPTH)

    def changed(self, ignored: Collection[str] = ()) -> list[str]:
        """Return the paths of changed values, in the order of the modules.

        Args:
            ignored: attributes of modules that do not count, such as ``training``.
        """
        found: list[str] = []
        for path, container, former in self._kept:
            keys = _differences(_contents(container), former)
            if isinstance(container, nn.Module):
                keys = [key for key in keys if key[1:] not in ignored]
            found.extend(f"{path}{key}" for key in keys)
        return found

    def containers(self) -> list[Any]:
        """Return the containers of the values: modules, lists, dicts, objects, arrays, ``Names`` and ``Cell``, but not
        tables.
        """
        return [container for _, container, former in self._kept if len(former) <= _MAX_ITEMS]

    def restore(self) -> None:
        """Restore all contents."""
        for _, container, former in self._kept:
            if not _differences(_contents(container), former):
                continue
            match container:
                case Names() | Cell():
                    container.write(former)
                case list():
                    container[:] = former
                case set() | deque():
                    container.clear()
                    container.update(former) if isinstance(container, set) else container.extend(former)
                case dict():
                    container.clear()
                    container.update(former)
                case np.ndarray():
                    container[...] = former
                case _ if not hasattr(container, "__dict__"):
                    for name, value in former.items():
                        setattr(container, name, value)
                case _:
                    attributes = vars(container)
                    for name in _contents(container).keys() - former.keys():
                        del attributes[name]
                    attributes.update(former)

    def _keep(self, path: str, container: Any, seen: set[int], depth: int) -> None:
        if id(container) in seen or depth == 0:
            return
        seen.add(id(container))
        former = _contents(container)
        self._kept.append((path, container, former))
        if len(former) > _MAX_ITEMS:
            return
        if isinstance(former, np.ndarray):
            return
        items = former.items() if isinstance(former, dict) else enumerate(former)
        for key, value in list(items):
            for inner in _containers_in(value):
                self._keep(f"{path}{_step(container, key)}", inner, seen, depth - 1)


def check_repeats(first: "Traced", second: "Traced", changed: Sequence[str]) -> None:
    """Check that forward gives the same graph when it is called again.

    Raises:
        TraceError: the graphs differ; the message names the state that forward changed.
    """
    if _describe(*first) != _describe(*second):
        raise TraceError(state_refusal(changed, "the graph changes with it"))


def state_refusal(changed: Sequence[str], why: str) -> str:
    """Return the message for state that a graph cannot carry."""
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"forward changes {', '.join(changed[:3])}{more}, and {why}: a graph is traced once and run many times; keep "
        "such state in a buffer (register_buffer) and assign that, or make it an input and an output"
    )


#: A graph, and the program's tensors for its parameters, buffers and constants.
Traced = tuple[ModelGraph, Mapping[str, torch.Tensor]]


def _contents(container: Any) -> Any:
    if _is_collection(container) or isinstance(container, np.ndarray):
        return container.copy()
    if isinstance(container, Names | Cell):
        return container.read()
    if not hasattr(container, "__dict__"):
        return {name: getattr(container, name) for name in slots_of(container) if hasattr(container, name)}
    return {k: v for k, v in vars(container).items() if not k.startswith(_TORCHS)}


def _is_collection(value: Any) -> bool:
    """Return whether the value is a plain list, set, deque or dict: some classes of libraries create items on
    access.
    """
    if isinstance(value, dict):
        kind = type(value)
        return kind.__getitem__ is dict.__getitem__ and kind.__iter__ in {dict.__iter__, OrderedDict.__iter__}
    return isinstance(value, list | set | deque)


def slots_of(value: Any) -> list[str]:
    """Return the names of the slots that a program's classes give ``value``."""
    classes = [kind for kind in type(value).__mro__ if not is_library(kind.__module__)]
    return [name for kind in classes for name in getattr(kind, "__slots__", ()) if not name.startswith("__")]


def _containers_in(value: Any) -> list[Any]:
    """Return ``value`` if it is a container, otherwise the containers in a tuple, a method or a partial."""
    match value:
        case tuple():
            return [inner for item in value for inner in _containers_in(item)]
        case MethodType():
            return _containers_in(value.__self__)
        case functools.partial():
            return _containers_in((value.func, *value.args, *value.keywords.values()))
    return [value] if _is_container(value) else []


def _is_container(value: Any) -> bool:
    if _is_collection(value):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.nbytes <= _MAX_ARRAY_BYTES
    return (
        (hasattr(value, "__dict__") or bool(slots_of(value)))
        and not isinstance(value, _OPAQUE)
        and not (callable(value) and is_library(type(value).__module__))
    )


def _step(container: Any, key: Any) -> str:
    return f"[{key!r}]" if isinstance(container, list | set | deque | dict) else f".{key}"


def _differences(now: Any, former: Any) -> list[str]:
    if isinstance(former, set):
        return [] if now == former else ["{…}"]
    if isinstance(former, np.ndarray):
        return [] if np.array_equal(now, former) else ["[…]"]
    if isinstance(former, list | deque):
        same = len(now) == len(former) and all(map(_is_same, now, former))
        return [] if same else ["[…]"]
    keys = [k for k in {**former, **now} if k not in now or k not in former or not _is_same(now[k], former[k])]
    return [f".{key}" if isinstance(key, str) else f"[{key!r}]" for key in keys]


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) is type(other) and isinstance(one, _PLAIN) and one == other


def _describe(graph: ModelGraph, state: Mapping[str, torch.Tensor]) -> object:
    """Describe a graph's computation, independently of its values' names and order."""
    digests: dict[str, str] = {}
    for value in graph.values.values():
        if value.kind is not ValueKind.OPERATOR:
            digests[value.name] = _digest_of_input(value.name, graph, state)
    for operator in graph.operators:
        args = [rename_references(argument, digests) for argument in operator.args]
        kwargs = [(key, rename_references(argument, digests)) for key, argument in sorted(operator.kwargs.items())]
        call = hashlib.blake2b(repr((operator.op, args, kwargs)).encode(), digest_size=16).hexdigest()
        digests.update({name: f"{call}.{place}" for place, name in enumerate(operator.outputs)})
    return [digests[n] for n in graph.outputs], {b: digests[v] for b, v in sorted(graph.updates.items())}


def _digest_of_input(name: str, graph: ModelGraph, state: Mapping[str, torch.Tensor]) -> str:
    if name in graph.rates:
        return f"rate {graph.rates[name]}"
    tensor = state.get(name)
    if "__constant__" not in name or tensor is None or tensor.nbytes > _MAX_CONSTANT_BYTES:
        return name
    content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return hashlib.blake2b(content, digest_size=16).hexdigest() + f" {tensor.dtype} {list(tensor.shape)}"


def fixed_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor], first: int) -> dict[int, torch.Tensor]:
    """Return the ``buffers`` that checkpoints do not change, by their position among a trace's values.

    Args:
        first: the position of the first buffer.
    """
    temporary = _temporary(model)
    return {place: b for place, (path, b) in enumerate(buffers.items(), first) if path in temporary and _is_whole(b)}


def temporary_numbers(model: nn.Module) -> list[torch.Tensor]:
    """Return the integer buffers that checkpoints do not change, whose values a trace may have read."""
    temporary = _temporary(model)
    return [b for path, b in model.named_buffers() if path in temporary and _is_whole(b)]


def checked_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor], first: int) -> dict[int, torch.Tensor]:
    """Return the integer buffers that a checkpoint may change: the trace is only valid for their present values."""
    temporary = _temporary(model)
    return {
        place: b for place, (path, b) in enumerate(buffers.items(), first) if path not in temporary and _is_whole(b)
    }


def unsaved_state(
    model: nn.Module, state: Mapping[str, torch.Tensor], constants: Mapping[str, str]
) -> dict[str, str]:  # fmt: skip
    """Return the symbols with nonzero values that checkpoints lack, with their names in the module.

    Args:
        constants: attribute → symbol of a tensor that forward used, other than parameters and buffers.
    """
    buffers = dict(model.named_buffers())
    temporary = {id(buffers[path]): path for path in _temporary(model) if path in buffers}
    found = {symbol: temporary[id(t)] for symbol, t in state.items() if id(t) in temporary}
    held = {
        id(value): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }
    found |= {symbol: held.get(id(state[symbol]), symbol) for symbol in constants.values()}
    return {symbol: name for symbol, name in found.items() if state[symbol].is_meta or state[symbol].any()}


def _temporary(model: nn.Module) -> set[str]:
    """Return the paths of buffers that are not part of a checkpoint."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }


def _is_whole(buffer: torch.Tensor) -> bool:
    """Return whether the tensor holds integers or a mask, and has values."""
    return not (buffer.is_floating_point() or buffer.is_complex() or buffer.is_meta)


def check_fixed(recorded: fx.Graph, sources: Mapping[fx.Node, Source], graph: ModelGraph) -> None:
    """Check that the graph does not change a buffer whose value forward has read.

    Raises:
        TraceError: it changes one.
    """
    for node, source in sources.items():
        if READ_META in node.meta and source.value.name in graph.updates:
            raise TraceError(
                f"forward reads the value of buffer {source.value.name!r} and changes it, but control flow, shapes "
                "and Python numbers cannot depend on state: use torch.where, or pass the value in as an argument"
            )


def check_overwritten(graph: ModelGraph, state: Mapping[str, torch.Tensor]) -> None:
    """Check that forward does not partly overwrite a tensor other than a parameter or buffer.

    Raises:
        TraceError: it does: in the trace, the written and the read tensor would differ.
    """
    changed = [name for name in graph.updates if "__constant__" in name]
    if not changed:
        return
    counts: dict[int, int] = {}
    for tensor in state.values():
        counts[memory_of(tensor)] = counts.get(memory_of(tensor), 0) + 1
    for name in changed:
        if counts[memory_of(state[name])] > 1:
            raise TraceError(
                f"forward overwrites a part of a tensor of {state[name].untyped_storage().nbytes()} bytes that is not "
                "a buffer, or writes to it under several names; keep such state in a buffer (register_buffer)"
            )
