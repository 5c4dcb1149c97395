"""Find what torch's CPU kernels do not take although fake tensors let it pass: prints the two lists of
``compiler/rdukit_compiler/operators/supported.py``, and exits with 1 if they lack an operator that is found.

It runs torch's own samples of every operator (``op_db``, which needs the package ``expecttest``), forward and backward:
each ATen operator that a sample calls once in f32, once in bf16, and once with operands of both. A few minutes.
"""

import contextlib
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from rdukit_compiler.capture.meta_rules import FakeMode
from rdukit_compiler.capture.record import record_forward
from rdukit_compiler.operators.supported import NORMS, SAME_DTYPE, WITHOUT_BF16
from rdukit_compiler.operators.vocabulary import LOSSES

SAMPLES: Final = 6


def find_refusals() -> tuple[set[str], set[str]]:
    """Return the operators that refuse bf16, and those that refuse a mix of bf16 and f32, by name without overload."""
    narrow: set[str] = set()
    mixed: set[str] = set()
    for name, function, args, kwargs in _calls():
        if _refuses(function, *_with_dtypes(args, kwargs, torch.float32)):
            continue
        if _refuses(function, *_with_dtypes(args, kwargs, torch.bfloat16)):
            narrow.add(name)
        elif len(_floats((args, kwargs))) > 1:
            for first, rest in itertools.permutations((torch.bfloat16, torch.float32)):
                call = _with_dtypes(args, kwargs, rest, first)
                if _refuses(function, *call) and not _refuses_fakes(function, *call):
                    mixed.add(name)
    return narrow, mixed


def _calls() -> Iterator[tuple[str, Callable[..., Any], Any, Any]]:
    """Yield each operator that torch's samples call, with real arguments; equal shapes once."""
    from torch.testing._internal.common_methods_invocations import op_db

    seen = set()
    for operator in op_db:
        if torch.float32 not in operator.dtypes:
            continue
        samples = operator.sample_inputs("cpu", torch.float32)  # type: ignore[no-untyped-call]
        for sample in list(samples)[:SAMPLES]:
            for node, args, kwargs in _recorded(operator, sample):
                shapes = str([tuple(tensor.shape) for tensor in _floats((args, kwargs))])
                if (key := (str(node.target), len(args), shapes)) not in seen:
                    seen.add(key)
                    yield str(node.target).split(".")[1], node.target, args, kwargs  # type: ignore[misc]


def _recorded(operator: Any, sample: Any) -> Iterator[tuple[fx.Node, Any, Any]]:
    """Yield the operators of one sample, each with the tensors that earlier ones computed."""
    leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(tensors: list[torch.Tensor]) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, tree)
        return operator(first, *args, **kwargs)

    try:
        with FakeMode(allow_non_fake_inputs=True):
            like = [torch.empty_strided(leaves[p].shape, leaves[p].stride(), dtype=leaves[p].dtype) for p in places]
        recorded = record_forward(function, like)
    except Exception:  # noqa: BLE001  a sample that cannot be traced calls nothing that is compiled
        return
    values: dict[fx.Node, Any] = {}
    tensors = iter([leaves[place] for place in places])
    for node in recorded.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(tensors)
        elif node.op == "get_attr":
            values[node] = getattr(recorded, str(node.target))
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.get)
            try:
                values[node] = node.target(*args, **kwargs)
            except Exception:  # noqa: BLE001  it needs what a sample that was not traced had made
                return
            is_operator = str(node.target).startswith("aten.") and not node.target._schema.is_mutable
            if is_operator and _floats((args, kwargs)):
                yield node, args, kwargs


def _floats(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _with_dtypes(args: Any, kwargs: Any, dtype: torch.dtype, first: torch.dtype | None = None) -> tuple[Any, Any]:
    """Return the arguments with floating tensors in ``dtype``, the first in ``first``, all requiring gradients."""
    order = itertools.chain([first or dtype], itertools.repeat(dtype))

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().to(next(order)).requires_grad_()
        return leaf

    converted: tuple[Any, Any] = pytree.tree_map(convert, (args, kwargs))
    return converted


def _refuses(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Return whether torch refuses the call or its gradient."""
    try:
        made = [tensor for tensor in _floats(function(*args, **kwargs)) if tensor.requires_grad]
        read = [tensor for tensor in _floats((args, kwargs)) if tensor.requires_grad]
        if made and read:
            torch.autograd.grad(made, read, [torch.ones_like(tensor) for tensor in made], allow_unused=True)
    except (RuntimeError, TypeError):
        return True
    return False


def _refuses_fakes(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, contextlib.suppress(Exception):
        fakes = pytree.tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
        return _refuses(function, *fakes)
    return True


def main() -> int:
    """Print both lists and what the file lacks."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    narrow, mixed = find_refusals()
    narrow -= LOSSES
    mixed -= narrow | LOSSES | NORMS
    for title, found, known in (("WITHOUT_BF16", narrow, WITHOUT_BF16), ("SAME_DTYPE", mixed, SAME_DTYPE)):
        print(f"{title}: {' '.join(sorted(found))}\nlacks: {' '.join(sorted(found - known)) or 'nothing'}\n")
    return int(bool(narrow - WITHOUT_BF16 or mixed - SAME_DTYPE))


if __name__ == "__main__":
    sys.exit(main())
