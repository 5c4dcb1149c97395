"""Hooks on gradients, recorded as they are written: a tensor passes through a function whose backward calls the hook.

While a forward is recorded, this module replaces ``Tensor.register_hook`` and the backward hooks of modules. Source:
ours.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from rdukit.errors import UnsupportedOperator

#: Metadata of a node: the tensor's entry before it was hooked, and its hooks.
_HOOKS_META: Final = "rdukit_hooks"

#: Arguments and result of a hook: gradients, or None where there is none.
Gradients = tuple[Any, ...]


class RecordedHook:
    """Result of ``register_hook`` while a forward is recorded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def remove(self) -> None:
        """Refuse while the record is made; later, do nothing: the record keeps the hook.

        Raises:
            UnsupportedOperator: forward removes its own hook.
        """
        if get_proxy_mode() is not None:
            raise UnsupportedOperator(
                f"forward registers {self._name} and removes it again, but a static graph would keep it; register it "
                "only where it must act"
            )


def hook_tensor(tensor: torch.Tensor, hook: Callable[[Any], Any]) -> RecordedHook:
    """Replace ``tensor.register_hook(hook)``: from now on ``tensor`` stands for itself behind the hook.

    Raises:
        UnsupportedOperator: an operator has read the tensor already: the hook would miss its part of the gradient.
    """
    mode = get_proxy_mode()
    assert mode is not None
    tracker = mode.tracer.tensor_tracker
    name = f"hook {_name_of(hook)!r}"
    entry = tracker.get(tensor)
    if entry is None:
        raise UnsupportedOperator(f"{name} is registered on a tensor that forward did not compute; hook its result")
    if not tensor.requires_grad:
        raise UnsupportedOperator(
            f"{name} is registered on a tensor that requires no gradient; torch refuses that too: ask requires_grad "
            "before"
        )
    former = entry.proxy.node
    if former.users:
        reader = next(iter(former.users)).name
        raise UnsupportedOperator(
            f"{name} is registered on a tensor that {reader!r} has already read; register it before the tensor is used"
        )
    # Hooks of one tensor are called in the order in which they were registered: one function calls them all.
    unhooked, hooks = former.meta.get(_HOOKS_META, (entry, ()))
    hooks = (*hooks, hook)
    tracker[tensor] = unhooked

    def call(gradients: Gradients) -> Gradients:
        for each in hooks:
            found = each(gradients[0])
            gradients = gradients if found is None else (found,)
        return gradients

    (passed,) = pass_through([tensor], call, name)
    made = tracker[passed]
    # Later views of the tensor are views of the result that passed through the hook.
    made.proxy.node.meta["val"] = former.meta["val"]
    made.proxy.node.meta[_HOOKS_META] = (unhooked, hooks)
    tracker[tensor] = made
    return RecordedHook(name)


def pass_through(
    tensors: Sequence[torch.Tensor], call: Callable[[Gradients], Gradients], name: str
) -> list[torch.Tensor]:
    """Return the same values, whose gradients are ``call`` of the arriving gradients."""

    class Hook(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: torch.Tensor) -> Any:
            return tuple(value.view_as(value) for value in values)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return call(gradients)

    Hook.__name__ = name
    return list(Hook.apply(*tensors))  # type: ignore[no-untyped-call]


class ModuleHooks:
    """Backward hooks of one call of a module; replaces ``torch.utils.hooks.BackwardHook``.

    A full backward hook gets the gradients of the module's inputs; the gradients of its outputs belong to another point
    of the backward, so a hook that reads them is refused.
    """

    def __init__(self, module: Any, hooks: Sequence[Any], pre_hooks: Sequence[Any]) -> None:
        self._module, self._hooks, self._pre_hooks = module, hooks, pre_hooks
        self._kind = type(module).__name__
        self._outputs = 0

    def setup_input_hook(self, args: Any) -> Any:
        """Return the module's arguments, behind its full backward hooks."""
        if not self._hooks:
            return args

        def call(gradients: Gradients) -> Gradients:
            return _chain(
                self._hooks,
                gradients,
                lambda hook, given: hook(self._module, given, _Unknown(_name_of(hook), self._kind)),
            )

        return _replace_tensors(args, call, f"full backward hook of {self._kind}")

    def setup_output_hook(self, result: Any) -> Any:
        """Return the module's result, behind its full backward pre-hooks."""
        if not self._pre_hooks:
            return result

        def call(gradients: Gradients) -> Gradients:
            return _chain(self._pre_hooks, gradients, lambda hook, given: hook(self._module, given))

        name = f"full backward pre-hook of {self._kind}"
        if isinstance(result, tuple):
            return _replace_tensors(result, call, name)
        return _replace_tensors((result,), call, name)[0]


class _Unknown:
    """The gradients of a module's outputs, for a hook that does not look at them."""

    def __init__(self, hook: str, module: str) -> None:
        self._text = (
            f"full backward hook {hook!r} of {module} reads grad_output, which is known at another point of the "
            "backward; use grad_input, or a full backward pre-hook, which gets grad_output"
        )

    def _refuse(self, *_: Any) -> Any:
        raise UnsupportedOperator(self._text)

    __getitem__ = __iter__ = __len__ = __bool__ = _refuse

    def __getattr__(self, name: str) -> Any:
        return self._refuse()


def _chain(hooks: Sequence[Any], gradients: Gradients, call: Callable[[Any, Gradients], Any]) -> Gradients:
    """Call each hook with the result of the one before; None changes nothing."""
    for hook in hooks:
        found = call(hook, gradients)
        if found is None:
            continue
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(gradients):
            raise UnsupportedOperator(
                f"backward hook {_name_of(hook)!r} returns {len(found)} gradients, expected {len(gradients)}"
            )
        gradients = found
    return gradients


def _replace_tensors(values: Any, call: Callable[[Gradients], Gradients], name: str) -> Any:
    """Pass each floating tensor of ``values`` through one function; hooks get None for other values."""
    places = [i for i, value in enumerate(values) if _is_floating(value)]
    if not places:
        return values

    def spread(gradients: Gradients) -> Gradients:
        found = call(tuple(gradients[places.index(i)] if i in places else None for i in range(len(values))))
        return tuple(found[i] for i in places)

    made = pass_through([values[i] for i in places], spread, name)
    passed = dict(zip(places, made, strict=True))
    return tuple(passed.get(i, value) for i, value in enumerate(values))


def _is_floating(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and hasattr(value, "dtype") and bool(value.is_floating_point())


def _name_of(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", None) or type(hook).__name__).rpartition(".")[2]
