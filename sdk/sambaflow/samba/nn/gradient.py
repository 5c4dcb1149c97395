"""A parameter's gradient for plain PyTorch programs: ``parameter.grad``.

A backward on the host sets the host's gradient. Without one, ``grad`` is a copy of the gradient of the device's last
backward. The device does not see changes of the copy, so they are refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass

#: In-place methods that do not change a gradient's numbers.
_HARMLESS: Final = frozenset({"requires_grad_", "detach_", "share_memory_"})
_IN_PLACE_OPERATORS: Final = frozenset(
    {f"__i{word}__" for word in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()}
    | {"__setitem__"}
)
#: Number of active blocks of ``host_gradients``.
_host_only = 0


@contextlib.contextmanager
def host_gradients() -> Iterator[None]:
    """Make ``parameter.grad`` return only the host's gradient, for code that updates the host's parameters."""
    global _host_only
    _host_only += 1
    try:
        yield
    finally:
        _host_only -= 1


def sees_device() -> bool:
    """Return whether ``parameter.grad`` may currently return the device's gradient."""
    return not _host_only


class DeviceGradient(torch.Tensor):
    """A copy of a gradient on the device. Reading it is as in torch; overwriting it is refused."""

    #: Symbol of the parameter.
    parameter: str = ""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        name = getattr(func, "__name__", "")
        if name == "zero_" and isinstance(args[0], DeviceGradient):
            _forget_gradient(args[0])
        elif _overwrites(name, args, kwargs or {}):
            raise InvalidArgument(
                f"{name} changes only the host's copy of a gradient; the device ignores it. To clip, pass "
                "max_grad_norm to "
                "the optimizer; to scale the loss, set the output's sn_grad; to change gradients, use "
                "parameter.register_hook before compile"
            )
        if name == "detach_":
            return args[0]  # the gradient has no history
        with DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        shares = isinstance(made, torch.Tensor) and any(
            isinstance(arg, DeviceGradient) and arg.untyped_storage().data_ptr() == made.untyped_storage().data_ptr()
            for arg in args[:1]
        )
        return made.as_subclass(DeviceGradient) if shares else _plain(made)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied: torch.Tensor = _plain(self).clone()
        return copied

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(_plain(self))


def _plain(value: Any) -> Any:
    if isinstance(value, DeviceGradient):
        with DisableTorchFunctionSubclass():
            return value.as_subclass(torch.Tensor)
    return value


def _overwrites(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    changes = (name.endswith("_") and not name.endswith("__") and name not in _HARMLESS) or name in _IN_PLACE_OPERATORS
    changed = [kwargs.get("out"), args[0] if changes and args else None]
    flat = [item for part in changed for item in (part if isinstance(part, list | tuple) else [part])]
    return any(isinstance(item, DeviceGradient) for item in flat)


def _forget_gradient(gradient: DeviceGradient) -> None:
    from sambaflow.sessions import current_session

    loaded = current_session().loaded
    if loaded is not None:
        loaded.updates.forget_gradients([gradient.parameter])
