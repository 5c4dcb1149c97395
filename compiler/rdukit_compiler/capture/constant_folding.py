"""Constant folding while a forward pass is recorded, and guards for values that are assumed.

A recorded tensor holds no data. Programs still read some, for instance to find whether a new mask is all zeros. Values
that depend on no input, parameter or buffer are computed from the record.

Values that depend on data are recorded as if they were known, and each run checks them. Models guard against overflow
with ``if not torch.isfinite(x).all(): x = clamp(x)``, and check their arguments with ``torch._check_tensor_all``. A
record takes one branch: that of finite numbers, and of checks that hold. A recorded call checks the condition: a run
that violates it ends in an error before any weight is updated. Other values that depend on data are
refused, unless the user lets the values of the example inputs stand for all (``SUPPOSE_EXAMPLE``): one graph for labels
without gaps, or for batches of one length.
"""

import linecache
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_flatten, tree_unflatten

from rdukit_compiler.capture.record_nodes import EXAMPLE_META, FIXED_META, READ_META, memory_of
from rdukit_compiler.torch_private import FakeTensor, OpOverload, unset_fake_temporarily

#: Operators that read a tensor's value.
READS: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})
#: Operators that a boolean index makes depend on data.
WRITES_INDEXED: Final = frozenset({"aten::index_put", "aten::index_put_"})
INDEXED: Final = WRITES_INDEXED | {"aten::index", "aten::_unsafe_index"}
_MASKS: Final = frozenset({torch.bool, torch.uint8})
#: Bounds on folding: larger computations belong on the device.
MAX_OPERATORS: Final = 64
MAX_ELEMENTS: Final = 1 << 24

#: Operators that return random numbers in [0, 1).
_UNIFORM: Final = frozenset({torch.ops.aten.rand.default, torch.ops.aten.rand_like.default})
#: Comparison with a number → whether it tests for less, and whether equality satisfies it.
_COMPARISONS: Final = {
    torch.ops.aten.lt.Scalar: (True, False), torch.ops.aten.le.Scalar: (True, True),
    torch.ops.aten.gt.Scalar: (False, False), torch.ops.aten.ge.Scalar: (False, True),
}  # fmt: skip

#: Finds the node that made a tensor which the program kept from an earlier record; None if unknown.
FindOrigin = Callable[[torch.Tensor], fx.Node | None]

aten = torch.ops.aten
#: torch's functions that check a condition; in a record they are guards.
ASSERTIONS: Final = frozenset({aten._assert_async.default, aten._assert_async.msg})
#: Operators that test for non-finite numbers, and ``torch._check_tensor_all``'s condition → their result if all is
#: well.
IF_WELL: Final[Mapping[object, bool]] = {
    aten.isfinite.default: True, aten.isnan.default: False, aten.isinf.default: False,
    aten.isposinf.default: False, aten.isneginf.default: False, aten._is_all_true.default: True,
}  # fmt: skip
#: Packages whose frames are not the program's.
_LIBRARIES: Final = frozenset({"torch", "sambaflow", "rdukit", "rdukit_compiler"})


def fold_constant(
    node: fx.Node, root: torch.nn.Module, origin_of: FindOrigin, supposing: bool = False
) -> torch.Tensor | None:  # fmt: skip
    """Return the tensor of ``node`` with its values; None if they are not known before the program runs.

    Args:
        root: holds the constants of a graph that has no module yet.
        supposing: assume that all numbers that the program tests (``torch.isfinite``) are finite, and use the example's
            inputs where these are known.
    """
    if (answer := _certain_comparison(node)) is not None:
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return torch.tensor(answer)
    order = _operators_before(node, root, origin_of, supposing)
    if order is None:
        return None
    made: dict[fx.Node, Any] = {}
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        for current, source in order:
            if FIXED_META in current.meta or EXAMPLE_META in current.meta:
                current.meta[READ_META] = True
            if isinstance(source, fx.Node):
                made[current] = made[source]
            elif source is not None:
                made[current] = source.clone()  # a copy: an operator may overwrite the program's own tensor
            else:
                arguments = fx.node.map_arg((current.args, current.kwargs), lambda n: made[n])
                assert callable(current.target)
                made[current] = current.target(*arguments[0], **arguments[1])
        found: torch.Tensor = made[node]
        return found


def number_in(tensor: torch.Tensor) -> bool | int | float:
    """Return the number in a known tensor of one element."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        number: bool | int | float = tensor.item()
        return number


def numbers_in(tensor: torch.Tensor) -> list[int]:
    """Return the whole numbers in a known tensor."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return [int(number) for number in tensor.flatten().tolist()]


def are_equal(tensors: Sequence[torch.Tensor]) -> bool:
    """Compute ``torch.equal`` of two known tensors."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return torch.equal(*tensors)


def fold_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    find: Callable[[torch.Tensor], torch.Tensor | None],
) -> Any:  # fmt: skip
    """Call ``function`` on known tensors; its results are constants of the record. None if a tensor is not known.

    Args:
        find: returns the values of a tensor, or None if they are not known.
    """
    leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
    known = [find(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if any(value is None and leaf is not None for value, leaf in zip(known, leaves, strict=True)):
        return None
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        values, named = tree_unflatten(known, structure)
        return function(*values, **named)


def fold_masks(
    indices: Sequence[torch.Tensor | None], find: Callable[[torch.Tensor], torch.Tensor | None]
) -> list[torch.Tensor | None] | None:
    """Replace boolean masks in ``indices`` by positions; None where there is no mask, or one is not known.

    Args:
        find: returns the values of a mask, or None if they are not known.
    """
    found: list[torch.Tensor | None] = []
    has_mask = False
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            found.append(index)
            continue
        has_mask = True
        if (known := find(index)) is None:
            return None
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            found.extend(known.nonzero().unbind(1))
    return found if has_mask else None


def asks_how_many(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> bool:  # fmt: skip
    """Return whether ``target[indices] = values`` assigns a separate value to each element that a mask selects."""
    masks = [place for place, index in enumerate(indices) if index is not None and index.dtype in _MASKS]
    if not masks:
        return False
    dims = sum(1 if index is None or index.dtype not in _MASKS else index.dim() for index in indices[: masks[0] + 1])
    behind = target.dim() - dims
    return values.dim() > behind and values.shape[-behind - 1] != 1


def _certain_comparison(node: fx.Node) -> bool | None:
    """Compare a uniform random number in [0, 1) with a limit outside of it, as with a drop rate of 0."""
    if len(node.args) != 2 or not isinstance(node.args[0], fx.Node) or node.args[0].target not in _UNIFORM:
        return None
    limit = node.args[1]
    if not isinstance(limit, int | float) or node.target not in _COMPARISONS:
        return None
    is_less, with_equal = _COMPARISONS[node.target]
    if limit >= 1:
        return is_less
    is_below = limit < 0 or (limit == 0 and is_less != with_equal)
    return not is_less if is_below else None


def _operators_before(
    node: fx.Node, root: torch.nn.Module, origin_of: FindOrigin, supposing: bool
) -> list[tuple[fx.Node, fx.Node | torch.Tensor | None]] | None:
    """Return the nodes in the order to compute them, each with the tensor, or the node of another record, that it
    equals.

    They include all nodes that overwrite memory of one of them, through any view.
    """
    found: dict[fx.Node, fx.Node | torch.Tensor | None] = {}
    records: dict[fx.Graph, _Record] = {}
    pending = [node]
    while pending:
        current = pending.pop()
        if current in found:
            continue
        source: fx.Node | torch.Tensor | None = None
        needed = current.all_input_nodes
        if current.op == "get_attr":
            tensor = getattr(current.graph.owning_module or root, str(current.target), None)
            source = origin_of(tensor) if isinstance(tensor, FakeTensor) else tensor
            if source is None:
                return None
            needed = [source] if isinstance(source, fx.Node) else []
        elif FIXED_META in current.meta:
            source = current.meta[FIXED_META]
        elif supposing and EXAMPLE_META in current.meta:
            source = current.meta[EXAMPLE_META]
        elif supposing and current.target in IF_WELL:
            with unset_fake_temporarily(), disable_proxy_modes_tracing():
                source = torch.tensor(IF_WELL[current.target]).expand(tuple(current.meta["val"].shape))
            needed = []
        elif current.op != "call_function" or not _is_pure(current):
            return None
        found[current] = source
        record = records.setdefault(current.graph, _Record(current.graph, len(records)))
        pending.extend(needed)
        pending.extend(record.overwriting(current))
        if len(found) > MAX_OPERATORS:
            return None
    # A record is found after the records that took tensors from it, and was made before them.
    return sorted(found.items(), key=lambda item: records[item[0].graph].place(item[0]))


class _Record:
    """Order of a record's nodes, and its nodes that overwrite memory; computed on first use."""

    def __init__(self, graph: fx.Graph, number: int) -> None:
        self._graph, self._number = graph, number

    @cached_property
    def _places(self) -> dict[fx.Node, int]:
        return {node: place for place, node in enumerate(self._graph.nodes)}

    @cached_property
    def _overwriting(self) -> dict[int | None, list[fx.Node]]:
        found: dict[int | None, list[fx.Node]] = {}
        for node in self._graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is not None and schema.is_mutable and (operands := node.all_input_nodes):
                found.setdefault(memory_of(operands[0]), []).append(node)
        return found

    def overwriting(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes that overwrite the memory of ``node``, before it or after."""
        return self._overwriting.get(memory, []) if (memory := memory_of(node)) else []

    def place(self, node: fx.Node) -> tuple[int, int]:
        """Return a key that sorts nodes of several records into the order in which they were recorded."""
        return -self._number, self._places[node]


def _is_pure(node: fx.Node) -> bool:
    function, value = node.target, node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.numel() > MAX_ELEMENTS:
        return False
    if function is operator.getitem:
        return True
    return isinstance(function, OpOverload) and torch.Tag.nondeterministic_seeded not in function.tags


def record_guard(condition: torch.Tensor, expected: bool | int) -> None:
    """Record a check that ``condition``, of one element, is ``expected``, with the line of forward that reads it."""
    value = condition.reshape(())
    holds = value == expected if not isinstance(expected, bool) else value if expected else value.logical_not()
    aten._functional_assert_async.msg(holds, _place(sys._getframe()), holds)


def record_equality(values: torch.Tensor, expected: torch.Tensor) -> None:
    """Record a check that integers, or a mask, are ``expected``, with the line of forward that reads them."""
    holds = (values == expected).all()
    aten._functional_assert_async.msg(holds, _place(sys._getframe()), holds)


def _place(frame: FrameType | None) -> str:
    """Describe the innermost frame of the user's program: ``model.py:12: if …``."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "torch")).partition(".")[0] not in _LIBRARIES:
            name = frame.f_code.co_filename
            line = linecache.getline(name, frame.f_lineno).strip()
            return f"{Path(name).name}:{frame.f_lineno}" + (f": {line[:80]}" if line else "")
        frame = frame.f_back
    return "forward"
