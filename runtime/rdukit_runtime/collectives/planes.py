"""Choice of the data plane of a process group: shared memory on one machine, the group's own transport between some."""

import weakref
from typing import Final

import torch.distributed as dist

from rdukit.errors import InvalidArgument
from rdukit.settings import resolve
from rdukit_runtime.collectives.gloo import Gloo
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.region import open_region
from rdukit_runtime.collectives.shared_memory import SharedMemory
from rdukit_runtime.engine.torch_private import wait_limit_of
from rdukit_runtime.settings import DISTRIBUTED_TRANSPORT, GLOO

#: Data planes of torch's process groups; a plane goes with its group.
_PLANES: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Collectives]] = weakref.WeakKeyDictionary()


def collectives_of(group: dist.ProcessGroup) -> Collectives:
    """Return the collectives of a gloo group of torch. The first call is a collective itself.

    Ranks of one machine share memory; others use the group's own transport. They have the group's time limit.
    """
    if group not in _PLANES:
        _PLANES[group] = open_collectives(group)
    return _PLANES[group]


def open_collectives(group: dist.ProcessGroup) -> Collectives:
    """Return new collectives of a gloo group of torch; all its ranks call this.

    Raises:
        InvalidArgument: ranks choose different transports; all raise it.
    """
    between = Gloo(group)
    transports = between.exchange(resolve(DISTRIBUTED_TRANSPORT))
    if len(set(transports)) > 1:
        said = ", ".join(f"rank {rank} {transport}" for rank, transport in enumerate(transports))
        raise InvalidArgument(
            f"ranks choose different transports ({said}); set {DISTRIBUTED_TRANSPORT.name} to the "
            "same value on all ranks"
        )
    if transports[0] == GLOO:
        return between
    longest_s = wait_limit_of(group).total_seconds()
    region = open_region(group.rank(), group.size(), between.exchange, longest_s)
    return between if region is None else SharedMemory(region)
