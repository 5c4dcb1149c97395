"""Collectives of a data-parallel program's ranks: average gradients, start from equal values, agree.

The ranks are those of torch's default process group. Without one, or alone in it, the world has one rank and calls are
free. ``rdukit_runtime.collectives`` moves and adds the data. Source: runtime reference 9 (all-reduce of gradients in
groups, f32 reduction); averaging: SDK reference 18.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from rdukit.errors import PeerLost
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.membership import first_line
from rdukit_runtime.collectives.planes import collectives_of, ranks_of
from rdukit_runtime.collectives.sums import Reduction

#: Details of a loss that show its certainty.
_KEPT: Final = frozenset({"silent", "left"})


def world_size() -> int:
    """Return ranks of the default process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_mean(gradients: list[torch.Tensor], doing: str = "averaging gradients") -> list[torch.Tensor]:
    """Average each gradient over the ranks, in its own dtype; the given tensors stay unchanged.

    Raises:
        PeerLost: a rank died or does not answer. InvalidArgument: the ranks have other gradients.
    """
    if world_size() == 1 or not gradients:
        return gradients
    with peer_errors(doing):
        given = [gradient.to("cpu") for gradient in gradients]
        made = [torch.empty(gradient.shape, dtype=gradient.dtype) for gradient in given]
        default_collectives().all_reduce(given, made, Reduction.MEAN)
        return [mean.to(gradient.device) for mean, gradient in zip(made, gradients, strict=True)]


def broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """Overwrite the tensors with those of rank 0, bit for bit. They must be of equal shapes everywhere.

    Raises:
        PeerLost: a rank died or does not answer. InvalidArgument: the ranks have other tensors.
    """
    if world_size() == 1:
        return
    with peer_errors("sending the first values of parameters"):
        held = [(tensor, tensor.to("cpu")) for tensor in tensors]
        default_collectives().broadcast([memory for _, memory in held])
        for tensor, memory in held:
            if memory is not tensor:
                tensor.copy_(memory)


def default_collectives() -> Collectives:
    """Return the collectives of the default process group, which there must be."""
    group = dist.group.WORLD
    assert group is not None, "there is a group where there is more than one rank"
    return collectives_of(group)


def gather_facts(facts: Any) -> list[Any]:
    """Collect every rank's ``facts``, by rank. ``facts`` are plain values.

    Raises:
        PeerLost: a rank died or does not answer.
    """
    size = world_size()
    if size == 1:
        return [facts]
    with peer_errors("comparing their PEFs"):
        collectives, text = default_collectives(), json.dumps(facts).encode()
        lengths = list(map(int, collectives.exchange(str(len(text)))))
        rows = torch.empty(size, max(lengths), dtype=torch.uint8)
        collectives.all_gather(torch.frombuffer(bytearray(text.ljust(max(lengths))), dtype=torch.uint8), rows)
        return [json.loads(bytes(row.tolist())) for row in rows]


@contextmanager
def peer_errors(doing: str) -> Iterator[None]:
    """Add this rank's activity to errors of a broken group; torch's errors become ours."""
    try:
        yield
    except (RuntimeError, PeerLost) as cause:
        reason, (rank, who) = first_line(cause), _name_own_rank()
        more = {k: v for k, v in cause.detail.items() if k in _KEPT} if isinstance(cause, PeerLost) else {}
        if not isinstance(cause, PeerLost):
            reason = f"that one died, ended before this one, or did not answer in time ({reason})"
        raise PeerLost(
            f"{who} lost another rank while {doing}: {reason}. The lost rank's output has the "
            "cause; parameters here are those of the last complete step. Start all ranks again",
            rank=rank, **more,
        ) from cause  # fmt: skip


def _name_own_rank() -> tuple[int, str]:
    """Return this rank's number in the launch, and its name with the default group.

    A function of its own: errors keep the variables of the functions that raise them, and while a variable refers to
    the group, its connections stay open, so that ranks that wait for this one do not notice that it has left.
    """
    group = dist.group.WORLD
    if group is None:
        return 0, "rank 0 of 1"
    ranks = ranks_of(group)
    return ranks.numbers[group.rank()], ranks.name([group.rank()])
