"""The mode of tensors without data, where torch's own imports its distributed tensors without need.

For a few operators torch finds the result by calling others on the fake tensors, outside of their mode. There its C++
looks whether they are distributed tensors, and imports these for it, which takes 0.3 s. Inside their mode, where torch
calls the decompositions of most operators, it does not look.

All of it is private to torch. Source: ours.
"""

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_BY_OTHERS: Final = frozenset({
    torch.ops.aten.native_layer_norm.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default,
    torch.ops.aten.view_copy.default, torch.ops.aten._reshape_copy.default, torch.ops.aten.select.int,
})  # fmt: skip


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's mode, with the same results."""

    def _dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _BY_OTHERS:
            with self:
                return super()._dispatch_impl(func, types, args, kwargs)
        return super()._dispatch_impl(func, types, args, kwargs)
