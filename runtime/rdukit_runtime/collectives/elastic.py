"""A group of ranks that goes on without those it loses.

Each rank serves a store of its own at which the others can meet, since any rank may be the lost one. After a loss the
lowest rank that answers collects those that come, decides who goes on (``membership``), and they make a new process
group at its store, numbered in the order of their launch. A process has ended where its store's port refuses
connections; a rank that is merely silent is waited for as long as a collective is. Source: ours.
"""

import logging
import os
import socket
import time
import uuid
import weakref
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost
from rdukit.settings import resolve
from rdukit_node.leases.launch import LOOPBACK, read_launch
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.membership import (
    RankProgress,
    RegroupDecision,
    count_ranks,
    decide,
    must_average_again,
    name_ranks,
    read_decision,
    read_rank_progress,
)
from rdukit_runtime.collectives.planes import collectives_of
from rdukit_runtime.engine.torch_private import PrefixStore, TCPStore, wait_limit_of
from rdukit_runtime.process_group import leave_process_group, renew_process_group
from rdukit_runtime.settings import CONTINUE, DISTRIBUTED_FEWEST_RANKS, DISTRIBUTED_ON_LOSS, FAIL

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.01
#: Seconds between looks whether members that have not come have ended, and the longest wait for a connection.
_LOOK_S, _CONNECT_S = 0.1, 2.0

Address = tuple[str, int]


class Elastic:
    """The default process group of torch, whose ranks may become fewer.

    Args:
        rank: of this process, as its launch numbered it. members: all ranks of the group, numbered so.
        store: of this rank. addresses: of the members' stores, by rank.
    """

    def __init__(
        self, collectives: Collectives, rank: int, members: tuple[int, ...], store: TCPStore,
        addresses: dict[int, Address], fewest: int,
    ) -> None:  # fmt: skip
        self.collectives = collectives
        self.members = members
        #: Steps that this rank has finished.
        self.steps = 0
        #: Losses so far, as plain values.
        self.losses: list[dict[str, Any]] = []
        self._rank, self._store, self._addresses, self._fewest = rank, store, addresses, fewest
        self._backend = dist.get_backend()
        group = dist.group.WORLD
        assert group is not None, "collectives are of a group"
        self._limit = wait_limit_of(group)
        #: The default group that the collectives are of; other programs of this process may replace it.
        self._group = weakref.ref(group)
        #: Number of the group, from 0; and the announcements that this rank has decided upon.
        self._generation = 0
        self._answered: set[str] = set()

    def commit(self) -> None:
        """Wait until all ranks have the means of this step.

        Raises:
            PeerLost: a rank was lost before.
        """
        if self.collectives.size > 1:
            self.collectives.barrier()
        self.steps += 1

    def regroup(self, loss: PeerLost, is_averaged: bool) -> bool:
        """Make a new group of the ranks that are left; returns whether they average this step again.

        Args:
            is_averaged: whether this rank has the means of its step.
        Raises:
            PeerLost: too few ranks are left, others went on without this one, or another program of this process has
            made a new group before.
        """
        if dist.group.WORLD is not self._group():
            raise PeerLost(
                f"rank {self._rank} trains several PEFs, and has made a new group for another one after a loss; a "
                f"training goes on only where its process trains one: start all ranks again", rank=self._rank,
            ) from loss  # fmt: skip
        silent, left = self._named(loss, "silent"), self._named(loss, "left")
        began, cause = time.monotonic(), Exception()
        self.collectives.close()
        leave_process_group()  # without its connections, ranks that wait for this one notice, too
        for _ in self.members:  # each further attempt is for a rank that was lost meanwhile
            store, verdict = self._agree(silent, left)
            if verdict.refusal:
                raise PeerLost(
                    f"{name_ranks(verdict.lost)} was lost at step {self.steps + 1}, and the others do not go on: "
                    f"{verdict.refusal}; start all ranks again", rank=self._rank,
                ) from loss  # fmt: skip
            mine = RankProgress(self.steps, is_averaged)
            try:
                self._meet(store, verdict)
                progress = [read_rank_progress(text) for text in self.collectives.exchange(mine.text)]
            except (PeerLost, RuntimeError) as error:
                self.collectives.close()
                leave_process_group()
                cause = error
                continue
            again = must_average_again(progress, mine)
            if not (again or is_averaged):
                raise PeerLost(
                    f"rank {self._rank} has no means of step {self.steps + 1}, which others have used; start all ranks "
                    "again", rank=self._rank,
                ) from loss  # fmt: skip
            self._note(verdict, progress, time.monotonic() - began)
            self.steps += not again
            return again
        raise PeerLost("ranks were lost while the others made a new group; start all again") from cause

    def _note(self, verdict: RegroupDecision, progress: list[RankProgress], seconds: float) -> None:
        self._store.set(f"closed/{self._generation}", "1")
        self._generation += 1
        self.members = verdict.members
        step = max(each.steps for each in progress) + 1
        self.losses.append(
            {"step": step, "lost": list(verdict.lost), "ranks": list(verdict.members), "seconds": seconds}
        )
        if verdict.members[0] == self._rank:
            verb = "was" if len(verdict.lost) == 1 else "were"
            logger.warning(
                "event=rank-lost step=%d: %s %s lost at step %d; %s on", step, name_ranks(verdict.lost), verb,
                step, f"{count_ranks(len(verdict.members))} {'goes' if len(verdict.members) == 1 else 'go'}",
            )  # fmt: skip

    def _meet(self, store: Any, verdict: RegroupDecision) -> None:
        named = PrefixStore(f"group/{verdict.name}", store)
        renew_process_group(
            self._backend, named, verdict.members.index(self._rank), len(verdict.members), self._limit
        )  # fmt: skip
        group = dist.group.WORLD
        assert group is not None, "it has been made"
        self._group = weakref.ref(group)
        self.collectives = collectives_of(group)

    # -- agreeing on who goes on ---------------------------------------------------------------------------------------

    def _named(self, loss: PeerLost, detail: str) -> set[int]:
        """Return the members that a detail of the loss names by their ranks in the group."""
        return {self.members[int(rank)] for rank in str(loss.detail.get(detail, "")).split(", ") if rank}

    def _agree(self, silent: Collection[int], left: Collection[int]) -> tuple[Any, RegroupDecision]:
        """Return the decision of the lowest member that answers, and the store at which they meet."""
        for member in self.members:
            if member == self._rank:
                return self._store, self._coordinate(silent, left)
            if member not in silent and (found := self._follow(member)) is not None:
                return found
        raise AssertionError("this rank is a member")

    def _follow(self, member: int) -> tuple[Any, RegroupDecision] | None:
        """Announce this rank to a member, and return its decision; None if it has ended or does not answer."""
        if has_ended(self._addresses[member]):
            return None
        nonce = uuid.uuid4().hex
        try:
            store = self._connect(member)
            self._check_open(store)
            store.set(f"here/{self._generation}/{self._rank}", nonce)
            store.wait([f"verdict/{nonce}"], 2 * self._limit)
            return store, read_decision(store.get(f"verdict/{nonce}").decode())
        except RuntimeError:  # torch's, of a broken connection or at the limit
            return None

    def _coordinate(self, silent: Collection[int], left: Collection[int]) -> RegroupDecision:
        """Collect the members that are left, and decide.

        Args:
            left: members that gave up before: they may have ended after they had gone on without this rank, and are
                not taken for dead.
        """
        self._check_open(self._store)
        others = [member for member in self.members if member != self._rank]
        for member in others:
            if member not in silent and not has_ended(self._addresses[member]):
                with suppress(RuntimeError):
                    self._check_open(self._connect(member))
        here: dict[int, str] = {}
        dead: set[int] = set()
        end, look = time.monotonic() + self._limit.total_seconds(), 0.0
        while True:
            for member in others:
                key = f"here/{self._generation}/{member}"
                if member not in here and self._store.check([key]):
                    nonce = self._store.get(key).decode()
                    if nonce not in self._answered:
                        here[member] = nonce
            missing = [member for member in others if member not in here and member not in silent]
            now = time.monotonic()
            if now >= look:
                dead = {member for member in missing if has_ended(self._addresses[member])}
                look = time.monotonic() + _LOOK_S
            if dead.issuperset(missing) or now > end:
                break
            time.sleep(_POLL_S)
        verdict = decide(uuid.uuid4().hex, self.members, [self._rank, *here], dead - set(left), self._fewest)
        for member in verdict.lost if not verdict.refusal else ():
            if member not in dead:  # it may wake
                with suppress(RuntimeError):
                    self._connect(member).set(f"closed/{self._generation}", "1")
        for nonce in here.values():
            self._answered.add(nonce)
            self._store.set(f"verdict/{nonce}", verdict.text)
        return verdict

    def _connect(self, member: int) -> TCPStore:
        host, port = self._addresses[member]
        return TCPStore(host, port, None, False, timeout=timedelta(seconds=_CONNECT_S), wait_for_workers=False)

    def _check_open(self, store: TCPStore) -> None:
        if store.check([f"closed/{self._generation}"]):
            raise PeerLost(
                f"rank {self._rank} did not answer in time, and the others went on without it", rank=self._rank
            )


def open_elastic(collectives: Collectives) -> Elastic | None:
    """Return the elastic form of the default process group; None if a lost rank ends the others. A collective.

    Raises:
        InvalidArgument: the ranks choose differently; all raise it.
    """
    choice, fewest = resolve(DISTRIBUTED_ON_LOSS), resolve(DISTRIBUTED_FEWEST_RANKS)
    chosen = collectives.exchange(f"{choice} {fewest}")
    if len(set(chosen)) > 1:
        said = ", ".join(f"rank {rank} {text}" for rank, text in enumerate(chosen))
        raise InvalidArgument(
            f"ranks choose differently what a loss does and how many go on ({said}); set {DISTRIBUTED_ON_LOSS.name} "
            f"and {DISTRIBUTED_FEWEST_RANKS.name} alike"
        )
    if choice != CONTINUE:
        return None
    store = TCPStore("localhost", 0, None, True, timeout=timedelta(seconds=_CONNECT_S), wait_for_workers=False)
    addresses: dict[int, Address] = {}
    for member, text in enumerate(
        collectives.exchange(f"{find_own_address(read_launch(os.environ).address)} {store.port}")
    ):
        host, port = text.split()
        addresses[member] = host, int(port)
    return Elastic(collectives, collectives.rank, tuple(addresses), store, addresses, fewest)


def check_device(kind: str) -> None:
    """Refuse what a loss is to do where trainings cannot go on after one.

    Raises:
        InvalidArgument: the ranks are to go on, and compute on a GPU.
    """
    if kind != "cpu" and resolve(DISTRIBUTED_ON_LOSS) == CONTINUE:
        raise InvalidArgument(
            f"{DISTRIBUTED_ON_LOSS.name} is {CONTINUE}, and the device {kind}; trainings go on after a loss on the "
            f"device cpu only: set the device cpu, or {DISTRIBUTED_ON_LOSS.name} to {FAIL}"
        )


def find_own_address(meeting: str | None) -> str:
    """Return the address of this machine on the way to where the ranks met; loopback where they name no place."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(meeting or LOOPBACK, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return LOOPBACK


def has_ended(address: Address) -> bool:
    """Return whether a machine says that nobody listens at ``address``; False where it does not answer at all."""
    try:
        socket.create_connection(address, _CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
