"""The sides of the training comparisons, each for a process of its own: ours, and torch in its ways."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rdukit_zoo.comparisons.side import Work
from rdukit_zoo.comparisons.training import ROUTES, Step, on_route, our_step, peer_step
from rdukit_zoo.comparisons.training_cases import get_case, make_case

#: Torch's ways of one step in f32: how the module is wrapped, and whether the optimizer is fused.
PEERS: Final[Mapping[str, tuple[Callable[[nn.Module], Any], bool]]] = {
    "eager": (lambda module: module, False),
    "eager + fused": (lambda module: module, True),
    "torch.compile": (torch.compile, True),
}
#: Its ways in bf16 under autocast, with f32 weights as ours has them; the optimizer is fused.
BF16_PEERS: Final[Mapping[str, Callable[[nn.Module], Any]]] = {
    "autocast bf16": lambda module: module,
    "torch.compile autocast bf16": torch.compile,
    "torch.compile max-autotune autocast bf16": lambda module: torch.compile(module, mode="max-autotune-no-cudagraphs"),
}
#: Losses of as many steps are facts.
_STEPS: Final = 3


def ours(case: str, folder: str, threads: int) -> Work:
    """A SambaFlow program; one call, ``step``. The fact ``losses`` is of its first steps."""
    torch.set_num_threads(threads)
    module, batch = make_case(get_case(case))
    step = our_step(get_case(case), module, batch, Path(folder))
    return Work({"step": step}, {"losses": first_losses(step)})


def peer(case: str, kind: str, threads: int) -> Work:
    """Torch in the way ``kind`` of ``PEERS``: a call for each route of its matrix products, the fact as of ours."""
    torch.set_num_threads(threads)
    module, batch = make_case(get_case(case))
    wrap, is_fused = PEERS[kind]
    step = peer_step(wrap(module), batch, is_fused)
    return Work({words: on_route(step, route) for words, route in ROUTES.items()}, {"losses": first_losses(step)})


def bf16_peer(case: str, kind: str, threads: int) -> Work:
    """Torch in the way ``kind`` of ``BF16_PEERS``; one call, ``step``, and the fact as of ours."""
    torch.set_num_threads(threads)
    module, batch = make_case(get_case(case))
    step = peer_step(BF16_PEERS[kind](module), batch, fused=True, autocast=True)
    return Work({"step": step}, {"losses": first_losses(step)})


def first_losses(step: Step) -> list[float]:
    """Losses of the first steps."""
    return [float(step()) for _ in range(_STEPS)]
