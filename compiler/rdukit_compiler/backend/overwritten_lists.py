"""In-place operators on lists of tensors, ``_foreach_mul_`` and its like, as the operators that they stand for.

They return nothing, so that a record would hold no trace of what they wrote. torch's own form without kernels for lists
calls one in-place operator for each tensor, in order; so is it recorded.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

_PREFIX: Final = "aten::_foreach_"
#: Where the operator on one tensor has another name.
_WORDS: Final[Mapping[str, str]] = {"maximum": "clamp_min", "minimum": "clamp_max"}
#: Operators that take their factor by name.
_WITH_VALUE: Final = frozenset({"addcmul", "addcdiv"})


def find_single(func: Any) -> Any:
    """The operator that ``func`` stands for, such as ``aten.mul_`` for ``aten._foreach_mul_``; None if for none."""
    schema = func._schema
    if not (schema.name.startswith(_PREFIX) and schema.name.endswith("_") and schema.is_mutable):
        return None
    word = schema.name.removeprefix(_PREFIX).removesuffix("_")
    return getattr(torch.ops.aten, f"{_WORDS.get(word, word)}_", None)


def overwrite_each(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call the operator that ``func`` stands for on each tensor of its first argument.

    Raises:
        What torch raises where lists have other lengths or dtypes than it takes.
    """
    single = find_single(func)
    word = func._schema.name.removeprefix(_PREFIX).removesuffix("_")
    tensors, *rest = args
    lists = [isinstance(argument, list | tuple) for argument in rest]
    if any(is_list and len(argument) != len(tensors) for is_list, argument in zip(lists, rest, strict=True)):
        lengths = [len(tensors), *(len(a) for is_list, a in zip(lists, rest, strict=True) if is_list)]
        raise RuntimeError(f"Tensor lists must have the same number of tensors, got {lengths}")
    if word in _WITH_VALUE and len(rest) == 3 and isinstance(rest[2], torch.Tensor):
        rest[2], lists[2] = [factor.item() for factor in rest[2].unbind()], True
    for place, tensor in enumerate(tensors):
        own = [argument[place] if is_list else argument for is_list, argument in zip(lists, rest, strict=True)]
        named = dict(kwargs)
        if word in _WITH_VALUE and len(own) == 3:
            named["value"] = own.pop()
        single(tensor, *own, **named)
