"""Conversions back to a tensor's dtype, as in ``normalised.to(x.dtype)``, on a device that computes in bf16.

A program that widens for a while writes ``x.to(float32)`` first and ``y.to(x.dtype)`` last. In an f32 trace both
convert to f32, but on the device the second should return to ``x``'s bf16. Otherwise everything after it would be f32:
one line in a norm would widen a model's whole residual stream.

A conversion to f32 counts as one back to bf16 if its value is f32 on the device because the same module widened it and
has computed with it since. All other conversions stay f32:

- of a bf16 value;
- directly after another conversion, without a computation between them;
- of a value that another module widened;
- by ``.float()``, or where the program has not looked up a tensor's dtype (``Operator.names_dtype``).

Numbers that are f32 from the start, such as positions made of integers, count as widened where they are created.

Source: ours; the vendor computes in bf16 "whatever the host dtype says" (SDK reference 16) and publishes no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from rdukit.pef.kernel import Special
from rdukit_compiler.ir import Operator, Value
from rdukit_compiler.operators.vocabulary import is_loss

_CONVERSION: Final = "aten.to.dtype"
_WIDE: Final = Special("dtype", "float32")
_NARROW: Final = Special("dtype", "bfloat16")
#: Operators that only move or reshape the same numbers.
_SHOWING: Final = frozenset(
    "to float view reshape flatten unflatten squeeze unsqueeze transpose t permute expand contiguous clone slice "
    "select detach alias".split()
)


@dataclass(frozen=True, slots=True)
class _Widening:
    """Path of the module that widened a value, and whether it has computed with the value since."""

    module: str
    is_computed: bool


@dataclass(slots=True)
class RoundTripCasts:
    """Visits a graph's operators in order, and turns conversions back into conversions to bf16.

    Args:
        traced: the graph's values with the program's dtypes.
    """

    traced: Mapping[str, Value]
    _widened: dict[str, _Widening] = field(default_factory=dict)

    def convert(self, operator: Operator) -> Operator:
        """Return the operator, with bf16 as its dtype if it converts back."""
        if operator.op != _CONVERSION or operator.compute or len(operator.args) < 2 or operator.args[1] != _WIDE:
            return operator
        if operator.names_dtype:
            return operator
        found = self._widened.get(operator.inputs[0])
        if found is None or not found.is_computed or found.module != operator.module:
            return operator
        if self.traced[operator.inputs[0]].dtype != "float32":
            return operator
        return replace(operator, args=(operator.args[0], _NARROW, *operator.args[2:]))

    def follow(self, operator: Operator, tensors: Mapping[str, Any]) -> None:
        """Record which results of an operator depend on widened values.

        Args:
            tensors: the values so far, with the device's dtypes.
        """
        read = [name for name in operator.inputs if isinstance(tensors[name], torch.Tensor)]
        floating = [name for name in read if tensors[name].is_floating_point()]
        made = [n for n in operator.outputs if getattr(tensors.get(n), "dtype", None) is torch.float32]
        made = [name for name in made if tensors[name].dim()]  # a scalar widens nothing
        if not made or is_loss(operator):
            return
        is_computed = operator.op_type not in _SHOWING and bool(read)
        if all(tensors[name].dtype is torch.bfloat16 for name in floating):
            widening = _Widening(operator.module, is_computed)
        else:
            sources = [self._widened[name] for name in floating if name in self._widened]
            if not sources:
                return
            first = next((source for source in sources if source.module == operator.module), sources[0])
            widening = _Widening(first.module, first.is_computed or is_computed)
        self._widened.update(dict.fromkeys(made, widening))
