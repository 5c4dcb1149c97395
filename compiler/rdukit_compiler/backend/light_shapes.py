"""torch's questions about symbolic shapes, answered for shapes that are numbers; torch's own import takes 0.4 s.

Fake tensors and torch's recorder ask ``torch.fx.experimental.symbolic_shapes`` a few things about every shape, and the
import of it is that of sympy. In a record of ours a shape is numbers, and then the answers are plain. Any other
question goes to torch's own functions, imported at that time.

All of it is private to torch. Source: ours.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._ordered_set import OrderedSet

SYMBOLIC_SHAPES: Final = "torch.fx.experimental.symbolic_shapes"
#: The recorder asks whether what it records is of two classes of this module, which imports the former.
TRITON_KERNELS: Final = "torch._higher_order_ops.triton_kernel_wrap"
#: Imported for every result of a fake operator, and asked about symbols alone.
SYMPY: Final = "sympy"
#: torch's functions over sympy's expressions; one import of it is in the way of every shape.
SYMPY_FUNCTIONS: Final = "torch.utils._sympy.functions"

#: Module and name → what has that name in the module, which is imported for it.
FindReal = Callable[[str, str], Any]


def shape_functions(find_real: FindReal) -> dict[str, Callable[..., Any]]:
    """The functions of ``SYMBOLIC_SHAPES`` that records of plain shapes call, and what they import beside them."""

    def answers(name: str, is_plain: Callable[..., bool], answer: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            if not kwargs and is_plain(*args):
                return answer(*args)
            return find_real(SYMBOLIC_SHAPES, name)(*args, **kwargs)

        return function

    made = {}
    for name in ("guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true", "expect_true"):
        made[name] = answers(name, _is_flag, _itself)
    for name in ("guard_int", "guarding_hint_or_throw"):
        made[name] = answers(name, _is_size, _itself)
    for name in ("is_nested_int", "is_symbolic"):
        made[name] = answers(name, _is_number, lambda number: False)
    for name in ("has_free_symbols", "has_free_unbacked_symbols"):
        made[name] = answers(name, _holds_no_symbol, lambda value: False)
    for name in ("_iterate_exprs", "_iterate_nodes"):
        made[name] = answers(name, _holds_no_symbol, lambda value: iter(()))
    for name in ("constrain_range", "_constrain_range_for_size"):  # asked for with others, called for symbols alone
        made[name] = answers(name, lambda *_: False, _itself)
    made["free_unbacked_symbols"] = answers("free_unbacked_symbols", _holds_no_symbol, lambda value: OrderedSet())
    made["has_guarding_hint"] = answers("has_guarding_hint", _is_number, lambda number: True)
    made["sym_and"] = answers("sym_and", _are_flags, lambda *flags: all(flags))
    made["sym_or"] = answers("sym_or", _are_flags, lambda *flags: any(flags))
    made["sym_eq"] = answers("sym_eq", _are_sizes, lambda one, other: _listed(one) == _listed(other))
    made["compute_unbacked_bindings"] = answers("compute_unbacked_bindings", _is_without, lambda *_: None)
    made["is_accessor_node"] = answers("is_accessor_node", _reads_no_size, lambda node: False)
    made["ShapeEnv"] = _stand_in_class(SYMBOLIC_SHAPES, "ShapeEnv", find_real)
    made["GuardOnDataDependentSymNode"] = _NoGuard
    return made


class _NoGuard(Exception):
    """A question about a symbol without a value."""


def sympy_classes(find_real: FindReal) -> dict[str, type]:
    """What torch asks of every operand, whether it is one, of ``SYMPY``."""
    return {"Basic": _stand_in_class(SYMPY, "Basic", find_real)}


def sympy_functions(find_real: FindReal) -> dict[str, type]:
    """What the check of a shape's strides imports from ``SYMPY_FUNCTIONS``, and calls for symbols alone."""
    return {"Max": _stand_in_class(SYMPY_FUNCTIONS, "Max", find_real)}


def triton_classes(find_real: FindReal) -> dict[str, type]:
    """The classes of ``TRITON_KERNELS`` that the recorder asks for."""
    names = ("TritonKernelWrapperFunctional", "TritonKernelWrapperMutation")
    return {name: _stand_in_class(TRITON_KERNELS, name, find_real) for name in names}


def _stand_in_class(module: str, name: str, find_real: FindReal) -> type:
    """In the place of a class: nothing is an instance before that is imported; a call makes one of the real class."""

    class StandIn(type):
        def __instancecheck__(cls, instance: object) -> bool:
            real = getattr(sys.modules.get(module), name, cls)
            return real is not cls and isinstance(instance, real)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return find_real(module, name)(*args, **kwargs)

    return StandIn(name, (), {})


def _itself(value: Any) -> Any:
    return value


def _is_flag(*values: object) -> bool:
    return len(values) == 1 and type(values[0]) is bool


def _are_flags(*values: object) -> bool:
    return len(values) > 0 and all(type(value) is bool for value in values)


def _is_size(*values: object) -> bool:
    return len(values) == 1 and type(values[0]) is int


def _is_number(*values: object) -> bool:
    return len(values) == 1 and type(values[0]) in {bool, int, float}


def _are_sizes(*values: object) -> bool:
    """Two sizes, or two sequences of them."""
    if len(values) != 2 or isinstance(values[0], int) is not isinstance(values[1], int):
        return False
    return all(type(size) is int for value in values for size in _listed(value))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _holds_no_symbol(*values: object) -> bool:
    return len(values) == 1 and _is_concrete(values[0])


def _is_concrete(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and all(
            type(number) is int for number in (*value.shape, *value.stride(), value.storage_offset())
        )
    if isinstance(value, list | tuple):
        return all(_is_concrete(item) for item in value)
    return value is None or type(value) in {bool, int, float, str}


def _is_without(*arguments: object) -> bool:
    """No environment of symbols, and what was made."""
    return len(arguments) == 2 and arguments[0] is None


def _reads_no_size(*nodes: Any) -> bool:
    """Operators that read a size or a stride are called ``sym_…``."""
    return len(nodes) == 1 and nodes[0].op != "call_method" and "sym_" not in str(nodes[0].target)
