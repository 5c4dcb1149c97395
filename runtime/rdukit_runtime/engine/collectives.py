"""Collectives of a data-parallel program's ranks: average gradients, start from equal values, agree.

The ranks are those of torch's default process group; without one, or alone in it, everything here is a world of one
and costs nothing. Sums are made in f32 (f64 for f64 gradients) in an order that the group's algorithm fixes, and each
element's sum is made on one rank and sent to the others: all ranks hold the same bits, whatever the number of ranks.
Source: runtime reference 9 (all-reduce of gradients in groups, f32 reduction); averaging: SDK reference 18.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from rdukit.errors import PeerLost

#: Gradients travel in groups of this many bytes; torch's own choice for its buckets.
BUCKET_BYTES: Final = 25 << 20


def world_size() -> int:
    """Return ranks of the default process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_mean(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Average each gradient over the ranks, in its own dtype; the given tensors stay as they are.

    Raises:
        PeerLost: a rank died or does not answer.
    """
    ranks = world_size()
    if ranks == 1 or not gradients:
        return gradients
    with peer_errors("averaging gradients"):
        travelling = []
        for group in cut_buckets(gradients):
            wide = torch.float64 if gradients[group[0]].dtype == torch.float64 else torch.float32
            bucket = torch.cat([gradients[i].reshape(-1).to(wide) for i in group]).to("cpu")  # where gloo works
            travelling.append((group, bucket, dist.all_reduce(bucket, async_op=True)))
        made: list[torch.Tensor] = list(gradients)
        for group, bucket, work in travelling:
            work.wait()
            bucket.div_(ranks)
            sizes = [gradients[i].numel() for i in group]
            for position, flat in zip(group, torch.split(bucket, sizes), strict=True):
                made[position] = flat.view(gradients[position].shape).to(gradients[position])
    return made


def cut_buckets(gradients: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> list[list[int]]:
    """Return positions of gradients that travel together: in order, no f64 with others, and at least
    one in each group.
    """
    groups: list[list[int]] = []
    filled, was_double = 0, False
    for position, gradient in enumerate(gradients):
        is_double = gradient.dtype == torch.float64
        size = gradient.numel() * (8 if is_double else 4)
        if not groups or is_double != was_double or filled + size > bucket_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(position)
        filled, was_double = filled + size, is_double
    return groups


def broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """Overwrite the tensors with those of rank 0, bit for bit. They must be contiguous and of equal shapes everywhere.

    Raises:
        PeerLost: a rank died or does not answer.
    """
    if world_size() == 1:
        return
    with peer_errors("sending the first values of parameters"):
        flat = [(t, t.reshape(-1).view(torch.uint8).to("cpu")) for t in tensors if t.numel()]
        sent = [dist.broadcast(memory, 0, async_op=True) for _, memory in flat]
        for work in sent:
            work.wait()
        for tensor, memory in flat:
            if tensor.device.type != "cpu":  # on the host ``memory`` is the tensor's own
                tensor.copy_(memory.view(tensor.dtype).view(tensor.shape))


def gather_facts(facts: Any) -> list[Any]:
    """Collect every rank's ``facts``, by rank. ``facts`` are plain values.

    Raises:
        PeerLost: a rank died or does not answer.
    """
    said: list[Any] = [facts] * world_size()
    if len(said) > 1:
        with peer_errors("comparing their PEFs"):
            dist.all_gather_object(said, facts)
    return said


@contextmanager
def peer_errors(doing: str) -> Iterator[None]:
    """Turn torch's errors of a broken group into ours."""
    try:
        yield
    except RuntimeError as cause:
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        rank = dist.get_rank() if dist.is_initialized() else 0
        raise PeerLost(
            f"rank {rank} of {world_size()} lost another rank while {doing}: that one died, ended before this one, or "
            f"did not answer in time ({reason}). Its own output says why; parameters here are those of the last whole "
            "step. Start all ranks again",
            rank=rank,
        ) from cause
