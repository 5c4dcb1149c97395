"""Choice of the data plane of a process group: shared memory on one machine, the group's own transport between some."""

import os
import secrets
import weakref
from collections.abc import Sequence
from typing import Final

import torch.distributed as dist

from rdukit.errors import InvalidArgument
from rdukit.settings import resolve
from rdukit_runtime.collectives.gloo import Gloo
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.membership import GroupRanks, all_ranks
from rdukit_runtime.collectives.network import PortCard, find_gloo_address, find_machine, read_card
from rdukit_runtime.collectives.ports import RankPorts
from rdukit_runtime.collectives.rank_port import own_port
from rdukit_runtime.collectives.region import open_region
from rdukit_runtime.collectives.shared_memory import SharedMemory
from rdukit_runtime.engine.torch_private import wait_limit_of
from rdukit_runtime.settings import DISTRIBUTED_TRANSPORT, GLOO

#: Seconds in which ranks of this machine tell what they do in other groups.
_ASK_S: Final = 0.3
#: Data planes of torch's process groups; a plane goes with its group.
_PLANES: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Collectives]] = weakref.WeakKeyDictionary()
#: Ranks of default groups that have lost some.
_RANKS: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, GroupRanks]] = weakref.WeakKeyDictionary()


def keep_ranks(group: dist.ProcessGroup, ranks: GroupRanks) -> None:
    """Keep the launch's numbers of the ranks of a default group that has lost some."""
    _RANKS[group] = ranks


def ranks_of(group: dist.ProcessGroup) -> GroupRanks:
    """Return the launch's numbers of the ranks of a group that torch lists."""
    return number_members([] if group is dist.group.WORLD else dist.get_process_group_ranks(group), group.size())


def number_members(members: Sequence[int], size: int) -> GroupRanks:
    """Return the launch's numbers of members of a group of ``size`` ranks; ``members``: as torch numbers them.

    Args:
        members: empty: the group is the default one.
    """
    world = dist.group.WORLD
    of_world = all_ranks(size) if world is None else _RANKS.get(world) or all_ranks(world.size())
    return GroupRanks(tuple(of_world.at(members)), of_world.launched) if members else of_world


def collectives_of(group: dist.ProcessGroup) -> Collectives:
    """Return the collectives of a gloo group of torch. The first call is a collective itself.

    Ranks of one machine share memory; others use the group's own transport. They have the group's time limit.
    """
    if group not in _PLANES:
        _PLANES[group] = open_plane(group, ranks_of(group))[0]
    return _PLANES[group]


def open_plane(group: dist.ProcessGroup, ranks: GroupRanks) -> tuple[Collectives, RankPorts]:
    """Return new collectives of a gloo group of torch, and the ports of its ranks; all its ranks call this.

    Raises:
        InvalidArgument: ranks choose different transports; all raise it.
    """
    between, place = Gloo(group, ranks), group.rank()
    port = own_port(find_gloo_address(os.environ.get("MASTER_ADDR") or None))
    own = PortCard(resolve(DISTRIBUTED_TRANSPORT), secrets.token_hex(8), find_machine(), port.place)
    said = [read_card(text) for text in between.exchange(own.text)]
    transports = [card.transport for card in said]
    ports = between.ports
    if ports is None:
        places = [card.find_place(own.machine) for card in said]
        ports = between.ports = RankPorts(port, said[0].key, places, ranks, place)
    if len(set(transports)) > 1:
        chosen = ", ".join(f"rank {rank} {of}" for rank, of in zip(ranks.numbers, transports, strict=True))
        raise InvalidArgument(
            f"ranks choose different transports ({chosen}); set {DISTRIBUTED_TRANSPORT.name} to the "
            "same value on all ranks"
        )
    if transports[0] == GLOO:
        return between, ports
    longest_s = wait_limit_of(group).total_seconds()

    def ask(late: Sequence[int]) -> dict[int, str]:
        return {of: seen.elsewhere for of, seen in zip(late, ports.look(late, _ASK_S), strict=True)}

    region = open_region(place, group.size(), between.exchange, longest_s, ranks, ask)
    return between if region is None else SharedMemory(region, ports), ports
