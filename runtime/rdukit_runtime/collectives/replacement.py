"""A new process in the place of a rank that was lost.

The process reads the remaining ranks' addresses from the lost rank's file, and requests the place from the lowest of
them. The answer has the rank and the number of finished steps. At its program's first data-parallel run the process
reports that it is ready, and joins the group that the others make. Until then its group refuses collectives. Source:
ours.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost
from rdukit.settings import resolve
from rdukit_runtime.collectives.meeting import (
    ForeignStore,
    Roster,
    connect_store,
    find_roster,
    has_ended,
    roster_file,
)
from rdukit_runtime.collectives.membership import Address, RegroupDecision, read_addresses, read_decision
from rdukit_runtime.collectives.rank_store import RankStore
from rdukit_runtime.engine.torch_private import HashStore
from rdukit_runtime.settings import DISTRIBUTED_ON_LOSS, DISTRIBUTED_ROSTER, RENDEZVOUS_TIMEOUT_S, REPLACE

#: Name under which torch knows the group of a process that has no place in the others' group yet.
JOINING: Final = "rdu-joining"
_POLL_S: Final = 0.02
#: Collectives of a group, as torch calls them.
_COLLECTIVES: Final = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "all_gather_single",
    "allgather_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "alltoall", "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource", "barrier", "monitored_barrier",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class RankTensors:
    """Parameters, buffers and optimizer states, which are equal on all ranks; ``identity``: the PEF's digest."""

    identity: str
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """Facts about a training that the remaining ranks send to a new process.

    Args:
        members: all ranks, including the lost ones. steps: number of finished steps.
        generation: number of the group that the ranks will make. group_bytes: size of a group of gradients.
        identity: digest of the PEF. backend, limit_s: name of the group's backend, and its time limit in seconds.
        fewest: smallest number of ranks that may go on. addresses: stores of the members.
    """

    members: tuple[int, ...]
    steps: int
    generation: int
    group_bytes: int
    identity: str
    backend: str
    limit_s: float
    fewest: int
    addresses: Mapping[int, Address]

    @property
    def text(self) -> str:
        """Return the offer as JSON."""
        return json.dumps(asdict(self))


def read_offer(text: str) -> Offer:
    """Return the offer in a text of ``Offer.text``."""
    held = json.loads(text)
    return Offer(**{**held, "members": tuple(held["members"]), "addresses": read_addresses(held["addresses"])})


class JoiningRank:
    """A new process for rank ``rank``; ``roster`` is the lost rank's file."""

    def __init__(self, rank: int, roster: Roster) -> None:
        self.rank, self.roster = rank, roster
        self._end = time.monotonic() + resolve(RENDEZVOUS_TIMEOUT_S)

    def has_running_predecessor(self) -> bool:
        """Return whether the process that wrote the file still runs, so that its place is not free."""
        address = self.roster.addresses.get(self.rank)
        if address is None or has_ended(address):
            return False
        try:
            connect_store(address, self.roster.token)
        except RuntimeError:  # stopped, or the port is another program's now
            return False
        return True

    def ask(self) -> tuple[RankStore, str, Offer] | None:
        """Ask the lowest remaining rank for the place.

        Returns:
            Its store, the name of this request, and the offer; None: all ranks have ended.
        Raises:
            PeerLost: the others continued without this rank, or do not answer within
                ``distributed.rendezvous_timeout_s``.
        """
        while time.monotonic() < self._end:
            ended = True
            for member, address in sorted(self.roster.addresses.items()):
                if member == self.rank or has_ended(address):
                    continue
                try:
                    store = connect_store(address, self.roster.token)
                    ended = False
                    nonce = uuid.uuid4().hex
                    store.set(f"join/{self.rank}", nonce)
                    return store, nonce, read_offer(self._wait_for(store, f"offer/{nonce}"))
                except ForeignStore:
                    continue
                except RuntimeError:  # torch's: the member is lost, too
                    ended = False
            if ended:
                return None
            time.sleep(_POLL_S)
        raise PeerLost(
            f"the ranks that {roster_file(self.rank)} names did not offer rank {self.rank} its place within "
            f"{resolve(RENDEZVOUS_TIMEOUT_S):g} s; read their messages; raise ${RENDEZVOUS_TIMEOUT_S.variable} if "
            "they still wait; remove the file if their training has ended", rank=self.rank,
        )  # fmt: skip

    def become_member(self, own: Address) -> tuple[RankStore, Offer, RegroupDecision] | None:
        """Report that this process is ready; return the store where the ranks meet, their offer and their decision.

        Args:
            own: address of this process's store.
        Returns:
            None: a rank was lost meanwhile; call again.
        Raises:
            PeerLost: as ``ask``.
        """
        self._end = time.monotonic() + resolve(RENDEZVOUS_TIMEOUT_S)
        found = self.ask()
        if found is None:
            raise PeerLost(
                f"all other ranks ended while rank {self.rank} was joining; start all ranks again", rank=self.rank
            )
        store, nonce, offer = found
        try:
            store.set(f"ready/{nonce}", f"{own[0]} {own[1]}")
            return store, offer, read_decision(self._wait_for(store, f"verdict/{nonce}"))
        except RuntimeError:
            return None

    def _wait_for(self, store: RankStore, key: str) -> str:
        while not store.check([key]):
            if store.check([f"lost/{self.rank}"]):
                raise PeerLost(
                    f"the other ranks continued without rank {self.rank}, because this process started too late; "
                    "raise $RDUKIT_DISTRIBUTED_REPLACE_WAIT_S so that they wait longer", rank=self.rank,
                )  # fmt: skip
            if time.monotonic() > self._end:
                raise RuntimeError("the limit has passed")
            time.sleep(_POLL_S)
        return store.get(key).decode()


class JoiningProcessGroup(dist.ProcessGroup):
    """torch's default group of a process that has not joined the others yet; refuses collectives."""

    def __init__(self, candidate: JoiningRank, offer: Offer) -> None:
        super().__init__(offer.members.index(candidate.rank), len(offer.members))  # type: ignore[call-arg]
        self.candidate, self.offer = candidate, offer

    def getBackendName(self) -> str:
        """Return the name under which the backend is registered."""
        return JOINING


def _refusal(name: str) -> Callable[..., Any]:
    def call(self: JoiningProcessGroup, *args: Any, **kwargs: Any) -> Any:
        raise PeerLost(
            f"rank {self.rank()} replaces a lost rank and cannot call {name}: the other ranks train and call no "
            "collective of the program; call collectives after the first run with data_parallel=True, or on no rank",
            rank=self.rank(),
        )

    call.__name__ = name
    return call


for _name in _COLLECTIVES:
    setattr(JoiningProcessGroup, _name, _refusal(_name))


def find_joining() -> JoiningProcessGroup | None:
    """Return the group of a process that has not joined the others yet; None in any other process."""
    group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    return group if isinstance(group, JoiningProcessGroup) else None


def take_place(rank: int) -> bool:
    """Take the place of a lost rank if it has left a file; returns whether this process took one.

    Raises:
        PeerLost: the others continued without this rank, or do not answer.
        InvalidArgument: the file is damaged, or a running process of another training wrote it.
    """
    roster = find_roster(rank) if resolve(DISTRIBUTED_ON_LOSS) == REPLACE else None
    if roster is None:
        return False
    candidate = JoiningRank(rank, roster)
    if candidate.has_running_predecessor():
        raise InvalidArgument(
            f"{roster_file(rank)} belongs to a rank {rank} that still runs; kill that process to replace it, or set "
            f"${DISTRIBUTED_ROSTER.variable} to a folder that no other training uses"
        )
    found = candidate.ask()
    if found is None:  # all were killed, and start again
        roster_file(rank).unlink(missing_ok=True)
        return False
    _, _, offer = found

    if not hasattr(dist.Backend, JOINING.upper()):
        dist.Backend.register_backend(
            JOINING, lambda _, given: JoiningProcessGroup(*given), extended_api=True, devices=["cpu"]
        )  # fmt: skip
    size = len(offer.members)
    place: Any = (candidate, offer)
    dist.init_process_group(
        JOINING, store=HashStore(), rank=offer.members.index(rank), world_size=size, pg_options=place
    )  # fmt: skip
    return True
