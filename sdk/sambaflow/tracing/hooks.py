"""Hooks in a traced model: hooks on gradients are recorded, hooks that cannot be recorded are refused.

Forward hooks and forward pre-hooks run in the trace as on the host. Of ``saved_tensors_hooks`` only those without
effect are accepted: the compiler decides which tensors backward reads. Source: ours.
"""

import contextlib
import dis
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode

from rdukit.errors import UnsupportedOperator
from rdukit_compiler import ModuleHooks, RecordedHook, hook_tensor
from sambaflow.samba.sambatensor import unwrap
from sambaflow.tracing.torch_private import FakeTensor, replaced, unset_fake_temporarily

_register_hook = torch.Tensor.register_hook
_retain_grad = torch.Tensor.retain_grad
_register_multiple = torch.autograd.graph.register_multi_grad_hook
_register_post_accumulate = torch.Tensor.register_post_accumulate_grad_hook


@contextlib.contextmanager
def recorded_hooks(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], stand_ins: Mapping[int, torch.Tensor]
) -> Iterator[None]:
    """Record hooks that forward registers, and hooks of the model.

    Args:
        parameters: the model's own parameters, by path. stand_ins: id of a parameter → the tensor that stands for it in
            the trace.
    Raises:
        UnsupportedOperator: a static graph cannot have this kind of hook.
    """
    _check(model, parameters)
    with replaced(
        (torch.Tensor, "register_hook", _hook),
        (torch.Tensor, "retain_grad", _refuse_retaining),
        (torch.Tensor, "backward", _refuse_backward),
        (torch.autograd, "backward", _refuse_backward),
        (torch.Tensor, "register_post_accumulate_grad_hook", _refuse_accumulating),
        (torch.autograd.graph, "register_multi_grad_hook", _refuse_multiple),
        (torch.nn.modules.module, "BackwardHook", _ModuleHooks),
    ):
        for parameter in parameters.values():
            for hook in (parameter._backward_hooks or {}).values():
                hook_tensor(stand_ins[id(parameter)], _plain(hook))
        with warnings.catch_warnings():
            # torch warns of results that are not torch tensors; values of a trace are hooked nevertheless.
            warnings.filterwarnings("ignore", message="For backward hooks to be called")
            yield


def _check(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    for path, module in model.named_modules():
        if module._backward_hooks and not module._is_full_backward_hook:
            raise UnsupportedOperator(
                f"module {path or 'forward'!r} has a hook of register_backward_hook, which depends on how torch "
                "splits the module; use register_full_backward_hook or register_full_backward_pre_hook"
            )
    for path, parameter in parameters.items():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UnsupportedOperator(
                f"parameter {path!r} has a hook of register_post_accumulate_grad_hook, which runs on the host after "
                "each backward; use register_hook, which is compiled, or work on sn_grad after session.run"
            )


class _ModuleHooks(ModuleHooks):
    def __init__(self, module: Any, hooks: Sequence[Any], pre_hooks: Sequence[Any]) -> None:
        super().__init__(module, [_plain(hook) for hook in hooks], [_plain(hook) for hook in pre_hooks])


def _plain(hook: Any) -> Any:
    """Wrap ``hook``: convert returned SambaTensors to torch tensors."""

    @functools.wraps(hook)
    def call(*args: Any) -> Any:
        return unwrap(hook(*args))

    return call


def _is_traced(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and get_proxy_mode() is not None


def _hook(self: torch.Tensor, hook: Any) -> "RecordedHook | Any":
    return hook_tensor(self, _plain(hook)) if _is_traced(self) else _register_hook(self, hook)  # type: ignore[no-untyped-call]


def _refuse_retaining(self: torch.Tensor) -> None:
    if not _is_traced(self):
        _retain_grad(self)
        return
    _refuse("retain_grad() keeps a gradient that is on the device only; return the tensor from forward and read its "
            "sn_grad")  # fmt: skip


def _refuse_backward(*_: Any, **__: Any) -> None:
    _refuse("forward calls backward(), which adds to .grad of parameters; use torch.autograd.grad for gradients that "
            "forward computes with, and return the loss for those of parameters")  # fmt: skip


def _refuse_accumulating(self: torch.Tensor, hook: Any) -> Any:
    if not _is_traced(self):
        return _register_post_accumulate(self, hook)  # type: ignore[no-untyped-call]
    _refuse("register_post_accumulate_grad_hook in forward cannot be compiled; use register_hook, or work on sn_grad "
            "after session.run")  # fmt: skip


def _refuse_multiple(tensors: Any, fn: Any, *, mode: str = "all") -> Any:
    if get_proxy_mode() is None:
        return _register_multiple(tensors, fn, mode=mode)  # type: ignore[arg-type]
    _refuse("register_multi_grad_hook in forward cannot be compiled: only autograd's own graph determines when it is "
            "called; hook each tensor separately (register_hook), or work on sn_grad after session.run")  # fmt: skip


def _refuse(text: str) -> NoReturn:
    raise UnsupportedOperator(text)


def enter_hooks(hooks: Any) -> None:
    """Stand in for ``saved_tensors_hooks.__enter__`` during a trace: ignore hooks that change nothing.

    Raises:
        UnsupportedOperator: they may change tensors that backward reads.
    """
    is_torchs = type(hooks) is not saved_tensors_hooks and type(hooks).__module__.startswith("torch.")
    # torch's own hooks return equal tensors: save_on_cpu, activation checkpointing.
    if is_torchs or all(map(_is_identity, (hooks.pack_hook, hooks.unpack_hook))):
        return
    names = " and ".join(repr(getattr(h, "__qualname__", str(h))) for h in (hooks.pack_hook, hooks.unpack_hook))
    raise UnsupportedOperator(
        f"forward uses saved_tensors_hooks with {names}, which may change what backward reads; expected save_on_cpu "
        "and functions that return their argument: write another gradient as a torch.autograd.Function"
    )


def leave_hooks(hooks: Any, *raised: Any) -> None:
    """Stand in for ``saved_tensors_hooks.__exit__`` during a trace."""


def _is_identity(hook: Callable[[Any], Any]) -> bool:
    """Return whether a function has no branches and returns its argument."""
    if not isinstance(hook, FunctionType) or any(i.opcode in {*dis.hasjrel, *dis.hasjabs} for i in dis.Bytecode(hook)):
        return False
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        tensor = torch.ones(2, 3)
        try:
            return hook(tensor) is tensor
        except Exception:  # noqa: BLE001 - whatever the program's function raises, it is not the identity
            return False
