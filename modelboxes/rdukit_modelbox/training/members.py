"""Members of a training: processes with tiles of their own that train one model together, each on its part of a batch.

A member is a rank of data parallel: the optimizer gets gradients averaged over all members. So a step of ``count``
members with batches of B equals one step with a batch of ``count * B``. The first member alone decides, writes and
evaluates; the others follow it. Source: ours; the averaging is the SDK's (reference 18).
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rdukit_node.leases.launch import read_launch
from rdukit_runtime.engine.collectives import all_reduce_mean, broadcast, peer_errors
from rdukit_runtime.process_group import join_process_group


class Members:
    """Place of this process among the members; alone it costs nothing."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @classmethod
    def meet(cls) -> "Members":
        """Meet the members that were launched together; without a launch there is this process only.

        Raises:
            PeerLost: not all came in time.
        """
        launch = read_launch(os.environ)
        if launch.world_size == 1:
            return cls()
        join_process_group()
        return cls(launch.rank, launch.world_size)

    @property
    def is_first(self) -> bool:
        """Return whether this member decides, writes and evaluates."""
        return self.rank == 0

    def agree(self, word: bool) -> bool:
        """Return the first member's value; this member's is ignored.

        Raises:
            PeerLost: a member died or does not answer.
        """
        if self.count == 1:
            return word
        said = torch.tensor([int(word)])
        with peer_errors("agreeing whether to continue"):
            dist.broadcast(said, 0)
        return bool(said[0])

    def begin_at(self, step: int) -> int:
        """Return the first member's step to continue from, and take over its random state.

        Only the first member's folder certainly holds the checkpoint: others may be on other nodes.

        Raises:
            PeerLost: a member died or does not answer.
        """
        if self.count == 1:
            return step
        first, random = torch.tensor([step]), torch.get_rng_state()
        broadcast([first, random])
        torch.set_rng_state(random)
        return int(first[0])

    def mean(self, value: float) -> float:
        """Return the mean of the members' values.

        Raises:
            PeerLost: a member died or does not answer.
        """
        if self.count == 1:
            return value
        (mean,) = all_reduce_mean([torch.tensor([value], dtype=torch.float64)], "averaging the loss")
        return float(mean[0])

    def part_of(self, batch: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return this member's rows of a batch of all members together."""
        if self.count == 1:
            return batch
        rows = len(batch[0]) // self.count
        return [values[self.rank * rows : (self.rank + 1) * rows] for values in batch]
