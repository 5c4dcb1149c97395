"""``saved_tensors_hooks`` in forward: what a compiled backward reads is for the compiler to keep. Source: ours."""

import dis
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from rdukit.errors import UnsupportedOperator


def enter_hooks(hooks: Any) -> None:
    """In the place of ``saved_tensors_hooks.__enter__`` while a model is traced: hooks that change nothing do nothing.

    Raises:
        UnsupportedOperator: they may change what backward reads.
    """
    is_torchs = type(hooks) is not saved_tensors_hooks and type(hooks).__module__.startswith("torch.")
    # torch's own give back what they got: save_on_cpu, activation checkpointing.
    if is_torchs or all(map(_is_identity, (hooks.pack_hook, hooks.unpack_hook))):
        return
    names = " and ".join(repr(getattr(h, "__qualname__", str(h))) for h in (hooks.pack_hook, hooks.unpack_hook))
    raise UnsupportedOperator(
        f"forward uses saved_tensors_hooks with {names}, which may change what backward reads; legal are save_on_cpu "
        "and functions that return their argument: write another gradient as a torch.autograd.Function"
    )


def leave_hooks(hooks: Any, *raised: Any) -> None:
    """In the place of ``saved_tensors_hooks.__exit__``."""


def _is_identity(hook: Callable[[Any], Any]) -> bool:
    """Whether a function takes one way only, and that gives its argument back."""
    if not isinstance(hook, FunctionType) or any(i.opcode in {*dis.hasjrel, *dis.hasjabs} for i in dis.Bytecode(hook)):
        return False
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        tensor = torch.ones(2, 3)
        try:
            return hook(tensor) is tensor
        except Exception:  # noqa: BLE001 - whatever the program's function raises, it is not the identity
            return False
