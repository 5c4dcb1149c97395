"""A group of ranks that continues without lost ones, or with new processes in their places.

Each rank serves a store at which the others can meet, since any rank may be lost. After a loss the lowest rank that
answers collects the others, waits for new processes (``replacement``) and decides who continues (``membership``). These
form a new process group at its store, numbered in the order of their launch. If a store's port refuses connections, its
process has ended; a silent rank gets the time limit of a collective.
Source: ours.
"""

import logging
import os
import secrets
import time
import uuid
import weakref
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost, PefMismatch
from rdukit.settings import resolve
from rdukit_node.leases.launch import read_launch
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.handshake import combine_tokens
from rdukit_runtime.collectives.meeting import (
    Roster,
    connect_store,
    has_ended,
    keep_roster,
    seconds_since_start,
    serve_store,
    write_roster,
)
from rdukit_runtime.collectives.membership import (
    NEW,
    Address,
    GroupRanks,
    RankProgress,
    RegroupDecision,
    choose_sender,
    count_ranks,
    decide,
    first_line,
    is_at_step,
    must_average_again,
    name_ranks,
    read_decision,
    read_rank_progress,
)
from rdukit_runtime.collectives.network import find_gloo_address, find_own_address, use_interface_of
from rdukit_runtime.collectives.planes import collectives_of, keep_ranks
from rdukit_runtime.collectives.rank_store import RankStore
from rdukit_runtime.collectives.replacement import JoiningProcessGroup, Offer, RankTensors
from rdukit_runtime.engine.torch_private import PrefixStore, wait_limit_of
from rdukit_runtime.process_group import leave_process_group, renew_process_group
from rdukit_runtime.settings import (
    DISTRIBUTED_FEWEST_RANKS,
    DISTRIBUTED_ON_LOSS,
    DISTRIBUTED_REPLACE_WAIT_S,
    DISTRIBUTED_TOKEN,
    FAIL,
    REPLACE,
)

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.01
#: Seconds between looks whether members have ended.
_LOOK_S: Final = 0.1
#: Members that came after a loss: rank → name of their announcement, and their progress.
Present = dict[int, tuple[str, RankProgress]]


class Elastic:
    """The default process group of torch, whose ranks may become fewer.

    Args:
        rank: this process's rank in its launch. store: this process's store. roster: all members and their stores.
        fewest: smallest number of remaining ranks. backend, limit: those of the group. state: data for a new process.
    """

    #: Collectives of the present group.
    collectives: Collectives
    #: Store at which the group has met; torch's group holds its C++ part only.
    _meeting: RankStore

    def __init__(
        self, rank: int, store: RankStore, roster: Roster, fewest: int, backend: str, limit: timedelta,
        state: RankTensors | None,
    ) -> None:  # fmt: skip
        #: All ranks of the group, as the launch numbered them.
        self.members = tuple(sorted(roster.addresses))
        #: Steps that this rank has finished.
        self.steps = 0
        #: Losses so far, as plain values.
        self.losses: list[dict[str, Any]] = []
        #: Bytes of a group of gradients, for new processes.
        self.group_bytes = 0
        self._rank, self._store, self._token, self._fewest = rank, store, roster.token, fewest
        self._addresses: dict[int, Address] = dict(roster.addresses)
        self._backend, self._limit, self._state = backend, limit, state
        #: Number of ranks that were launched.
        self._launched = max(len(roster.addresses), read_launch(os.environ).world_size)
        self._start_s = seconds_since_start()
        self._replaces = resolve(DISTRIBUTED_ON_LOSS) == REPLACE
        #: The default group that the collectives are of; other programs of this process may replace it.
        self._group: weakref.ref[dist.ProcessGroup] | None = None
        #: Number of the group, from 0; and the announcements that this rank has decided upon.
        self._generation = 0
        self._answered: set[str] = set()
        if self._replaces:
            keep_roster(rank, self._addresses[rank])
            self._write_roster()

    def use(self, collectives: Collectives) -> None:
        """Use the default process group, to which these collectives belong."""
        group = dist.group.WORLD
        assert group is not None, "collectives are of a group"
        self.collectives, self._group = collectives, weakref.ref(group)

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
            PeerLost: too few ranks are left, others continued without this one, or another program of this process has
            already made a new group.
        """
        if self._group is None or dist.group.WORLD is not self._group():
            raise PeerLost(
                f"rank {self._rank} trains several PEFs and joined a new group for one of them; only processes that "
                "train a single PEF can continue after a loss: start all ranks again", rank=self._rank,
            ) from loss  # fmt: skip
        silent, left = self._named(loss, "silent"), self._named(loss, "left")
        began, cause = time.monotonic(), ""
        self.collectives.close()
        leave_process_group()  # without its connections, ranks that wait for this one notice, too
        for _ in self.members:  # each further attempt is for a rank that was lost meanwhile
            mine = RankProgress(self.steps, is_averaged)
            store, verdict = self._agree(silent, left, mine)
            if verdict.refusal:
                verb = "was" if len(verdict.lost) == 1 else "were"
                raise PeerLost(
                    f"{name_ranks(verdict.lost)} {verb} lost at step {self.steps + 1}, and the others cannot continue: "
                    f"{verdict.refusal}; start all ranks again", rank=self._rank,
                ) from loss  # fmt: skip
            try:
                progress = self._meet(store, verdict, mine)
            except (PeerLost, RuntimeError) as error:
                self.collectives.close()
                leave_process_group()
                cause = first_line(error)  # the error itself would keep the group, and so its connections
                continue
            again = must_average_again(progress, mine)
            if not (again or is_averaged):
                raise PeerLost(
                    f"rank {self._rank} lacks the averages of step {self.steps + 1}, which other ranks have used; "
                    "start all ranks again", rank=self._rank,
                ) from loss  # fmt: skip
            self._note(verdict, max(each.steps for each in progress), time.monotonic() - began)
            self.steps += not again
            return again
        raise PeerLost(
            f"ranks were lost while the others formed a new group ({cause}); start all ranks again",
            rank=self._rank,
        )

    def join(self, joining: JoiningProcessGroup) -> None:
        """Take a lost rank's place in the group that the others make, and their parameters.

        Raises:
            PeerLost: the others continued without this rank, or do not answer.
        """
        candidate, own = joining.candidate, self._addresses[self._rank]
        leave_process_group()
        cause = "all that it asked have ended"
        for _ in joining.offer.members:
            if (found := candidate.become_member(own)) is None:
                continue
            store, offer, verdict = found
            if verdict.refusal:
                raise PeerLost(f"rank {self._rank} cannot join the others: {verdict.refusal}", rank=self._rank)
            self._generation = offer.generation - 1
            try:
                progress = self._meet(store, verdict, NEW)
            except (PeerLost, RuntimeError) as error:
                leave_process_group()
                cause = first_line(error)  # the error itself would keep the group, and so its connections
                continue
            if not is_at_step(progress, joining.offer.steps):
                leave_process_group()
                raise PeerLost(
                    f"rank {self._rank} began at step {joining.offer.steps + 1}, but the others are at another step; "
                    "start its process again", rank=self._rank,
                )  # fmt: skip
            self.steps = joining.offer.steps
            self._note(verdict, self.steps, 0.0)
            return
        raise PeerLost(
            f"ranks were lost while rank {self._rank} joined them ({cause}); start all ranks again",
            rank=self._rank,
        )

    def _note(self, verdict: RegroupDecision, steps: int, seconds: float) -> None:
        self._store.set(f"closed/{self._generation}", "1")
        self._generation += 1
        self.members = verdict.members
        self._addresses.update(verdict.addresses)
        replaced = verdict.replaced
        for rank in set(verdict.lost) - set(replaced):
            self._store.set(f"lost/{rank}", "1")
        if self._replaces:
            try:
                self._write_roster()
            except InvalidArgument as error:  # the former file names enough ranks; the training goes on
                logger.warning("event=roster-not-written: %s", error.message)
        if self._rank in replaced:
            step = steps + 1
            logger.warning("event=joined step=%d: rank %d joined the others at step %d", step, self._rank, step)
            return
        self.losses.append({
            "step": steps + 1, "lost": list(verdict.lost), "replaced": list(replaced), "ranks": list(verdict.members),
            "seconds": seconds,
        })  # fmt: skip
        if self._rank == min(set(verdict.members) - set(replaced)):
            verb = "was" if len(verdict.lost) == 1 else "were"
            who = f"{name_ranks(replaced)} " if replaced and replaced != verdict.lost else ""
            new = f" and {who}replaced after {seconds:.1f} s" if replaced else ""
            logger.warning(
                "event=rank-lost step=%d: %s %s lost at step %d%s; %s on", steps + 1, name_ranks(verdict.lost), verb,
                steps + 1, new, f"{count_ranks(len(verdict.members))} {'goes' if len(verdict.members) == 1 else 'go'}",
            )  # fmt: skip

    def _write_roster(self) -> None:
        members = {member: self._addresses[member] for member in self.members}
        write_roster(self._rank, Roster(self._token, members))

    def _meet(self, store: RankStore, verdict: RegroupDecision, mine: RankProgress) -> list[RankProgress]:
        """Make the group that was decided upon, and send parameters to new processes; returns each member's progress.

        Raises:
            PeerLost, RuntimeError: a rank was lost meanwhile.
        """
        self._meeting = store
        named, members = PrefixStore(f"group/{verdict.name}", store), verdict.members
        addresses = {**self._addresses, **verdict.addresses}
        renew_process_group(
            self._backend, named, members, self._rank, self._limit, lambda member: has_ended(addresses[member])
        )  # fmt: skip
        group = dist.group.WORLD
        assert group is not None, "it has been made"
        keep_ranks(group, GroupRanks(members, self._launched))
        self.use(collectives_of(group))
        progress = [read_rank_progress(text) for text in self.collectives.exchange(mine.text)]
        sender, own = choose_sender(progress), self.collectives.rank
        tensors = () if self._state is None else self._state.tensors
        for place in (members.index(rank) for rank in verdict.replaced):
            for tensor in tensors:
                if own == sender:
                    self.collectives.send(tensor, place)
                elif own == place:
                    self.collectives.recv(tensor, sender)
        if verdict.replaced:
            self.collectives.barrier()
        return progress

    # -- agreeing on the members that continue -------------------------------------------------------------------------

    def _named(self, loss: PeerLost, detail: str) -> set[int]:
        """Return the members that a detail of the loss names."""
        return {int(rank) for rank in str(loss.detail.get(detail, "")).split(", ") if rank}

    def _agree(
        self, silent: Collection[int], left: Collection[int], mine: RankProgress
    ) -> tuple[RankStore, RegroupDecision]:
        """Return the decision of the lowest member that answers, and the store at which they meet."""
        for member in self.members:
            if member == self._rank:
                return self._store, self._coordinate(silent, left, mine)
            if member not in silent and (found := self._follow(member, mine)) is not None:
                return found
        raise AssertionError("this rank is a member")

    def _follow(self, member: int, mine: RankProgress) -> tuple[RankStore, RegroupDecision] | None:
        """Announce this rank to a member, and return its decision; None: it has ended or does not answer."""
        if has_ended(self._addresses[member]):
            return None
        nonce = uuid.uuid4().hex
        wait = timedelta(seconds=resolve(DISTRIBUTED_REPLACE_WAIT_S) if self._replaces else 0)
        try:
            store = connect_store(self._addresses[member], self._token)
            self._check_open(store)
            store.set(f"here/{self._generation}/{self._rank}", f"{nonce} {mine.text}")
            store.wait([f"verdict/{nonce}"], 2 * self._limit + wait)
            return store, read_decision(store.get(f"verdict/{nonce}").decode())
        except RuntimeError:  # torch's, of a broken connection or at the limit
            return None

    def _coordinate(self, silent: Collection[int], left: Collection[int], mine: RankProgress) -> RegroupDecision:
        """Collect the members that are left, wait for new processes, and decide.

        Args:
            left: members that gave up before: they may have continued without this rank before they ended, so they do
                not count as dead.
        """
        self._check_open(self._store)
        others = [member for member in self.members if member != self._rank]
        for member in others:
            if member not in silent and not has_ended(self._addresses[member]):
                with suppress(RuntimeError):
                    self._check_open(connect_store(self._addresses[member], self._token))
        here: Present = {}
        dead = self._collect(here, others, silent)
        came: dict[int, tuple[str, Address]] = {}
        if self._replaces and not decide("", self.members, [self._rank, *here], dead - set(left), 1).refusal:
            came = self._wait_for_new(here, others, mine)
            dead |= {member for member in others if member not in here and has_ended(self._addresses[member])}
        verdict = decide(
            uuid.uuid4().hex, self.members, [self._rank, *here], dead - set(left), self._fewest,
            {rank: address for rank, (_, address) in came.items()},
        )  # fmt: skip
        for member in verdict.lost if not verdict.refusal else ():
            if member not in dead:  # it may wake
                with suppress(RuntimeError):
                    connect_store(self._addresses[member], self._token).set(f"closed/{self._generation}", "1")
        for nonce in (*(nonce for nonce, _ in here.values()), *(nonce for nonce, _ in came.values())):
            self._answered.add(nonce)
            self._store.set(f"verdict/{nonce}", verdict.text)
        return verdict

    def _collect(self, here: Present, others: Collection[int], silent: Collection[int]) -> set[int]:
        """Wait for members until all others have ended, or the limit of a collective; return the ended ones."""
        dead: set[int] = set()
        end, look = time.monotonic() + self._limit.total_seconds(), 0.0
        while True:
            self._note_present(here, others)
            missing = [member for member in others if member not in here and member not in silent]
            now = time.monotonic()
            if now >= look:
                dead = {member for member in missing if has_ended(self._addresses[member])}
                look = time.monotonic() + _LOOK_S
            if dead.issuperset(missing) or now > end:
                return dead
            time.sleep(_POLL_S)

    def _note_present(self, here: Present, others: Collection[int]) -> None:
        for member in others:
            key = f"here/{self._generation}/{member}"
            if member not in here and self._store.check([key]):
                nonce, _, progress = self._store.get(key).decode().partition(" ")
                if nonce not in self._answered:
                    here[member] = nonce, read_rank_progress(progress)

    def _wait_for_new(
        self, here: Present, others: Collection[int], mine: RankProgress
    ) -> dict[int, tuple[str, Address]]:
        """Wait until each lost rank has a new process that is ready; return those that came in time.

        A member that ends meanwhile is removed from ``here``.
        """
        wait_s, came = resolve(DISTRIBUTED_REPLACE_WAIT_S), dict[int, tuple[str, Address]]()
        end, look, was_told = time.monotonic() + wait_s, 0.0, False
        while lost := [member for member in others if member not in here]:
            now = time.monotonic()
            steps = max(progress.steps for progress in (mine, *(each for _, each in here.values())))
            if not was_told:
                was_told = True
                logger.warning(
                    "event=waiting step=%d: %s lost at step %d; the others wait up to %g s for a new process (this "
                    "rank's start took %.0f s)", steps + 1, name_ranks(lost), steps + 1, wait_s, self._start_s,
                )  # fmt: skip
            self._note_new(came, lost, steps)
            if now >= look:
                for member in [member for member in here if has_ended(self._addresses[member])]:
                    del here[member]
                for member in [member for member, (_, address) in came.items() if has_ended(address)]:
                    del came[member]
                look = time.monotonic() + _LOOK_S
                continue
            if came.keys() >= set(lost) or now > end:
                break
            time.sleep(_POLL_S)
            self._note_present(here, others)
        return came

    def _note_new(self, came: dict[int, tuple[str, Address]], lost: Collection[int], steps: int) -> None:
        """Offer their places to new processes, and record those that are ready."""
        for rank in lost:
            if not self._store.check([f"join/{rank}"]):
                continue
            nonce = self._store.get(f"join/{rank}").decode()
            if nonce in self._answered:
                continue
            if not self._store.check([f"offer/{nonce}"]):
                identity = "" if self._state is None else self._state.identity
                offer = Offer(
                    self.members, steps, self._generation + 1, self.group_bytes, identity, self._backend,
                    self._limit.total_seconds(), self._fewest, self._addresses,
                )  # fmt: skip
                self._store.set(f"offer/{nonce}", offer.text)
            if self._store.check([f"ready/{nonce}"]):
                host, port = self._store.get(f"ready/{nonce}").decode().split()
                came[rank] = nonce, (host, int(port))

    def _check_open(self, store: RankStore) -> None:
        if store.check([f"closed/{self._generation}"]):
            raise PeerLost(
                f"rank {self._rank} did not answer in time, so the others continued without it", rank=self._rank
            )


def open_elastic(collectives: Collectives, state: RankTensors | None = None) -> Elastic | None:
    """Return the elastic form of the default process group; None if a lost rank ends the others. A collective.

    Args:
        state: data for a new process in a lost rank's place.
    Raises:
        InvalidArgument: the ranks choose differently; all raise it.
    """
    choice, fewest = resolve(DISTRIBUTED_ON_LOSS), resolve(DISTRIBUTED_FEWEST_RANKS)
    chosen = collectives.exchange(f"{choice} {fewest}")
    if len(set(chosen)) > 1:
        said = ", ".join(f"rank {rank} {text}" for rank, text in enumerate(chosen))
        raise InvalidArgument(
            f"ranks have different settings for the loss of a rank ({said}); set {DISTRIBUTED_ON_LOSS.name} and "
            f"{DISTRIBUTED_FEWEST_RANKS.name} to the same values on all ranks"
        )
    if choice == FAIL:
        return None
    shared = collectives.exchange(secrets.token_hex(16))[0]
    token = combine_tokens(resolve(DISTRIBUTED_TOKEN), shared)
    store = serve_store(token)
    addresses: dict[int, Address] = {}
    own = f"{find_gloo_address(read_launch(os.environ).address)} {store.port}"
    for member, text in enumerate(collectives.exchange(own)):
        host, port = text.split()
        addresses[member] = host, int(port)
    group = dist.group.WORLD
    assert group is not None, "collectives are of a group"
    roster = Roster(token, addresses)
    elastic = Elastic(collectives.rank, store, roster, fewest, dist.get_backend(), wait_limit_of(group), state)
    elastic.use(collectives)
    return elastic


def join_elastic(joining: JoiningProcessGroup, state: RankTensors) -> Elastic:
    """Join the ranks of a training as a new process: see ``Elastic.join``.

    Raises:
        PefMismatch: this process has loaded another PEF than the others. PeerLost: as ``Elastic.join``.
    """
    offer, rank = joining.offer, joining.candidate.rank
    if offer.identity != state.identity:
        raise PefMismatch(
            f"rank {rank} loaded a PEF that computes something other than the PEF of the ranks that it joins; start "
            "it with the same PEF"
        )
    token = joining.candidate.roster.token
    store = serve_store(token)
    other = next(host for member, (host, _) in sorted(offer.addresses.items()) if member != rank)
    use_interface_of(find_own_address(other))
    own = find_gloo_address(other), store.port
    roster = Roster(token, {**offer.addresses, rank: own})
    limit = timedelta(seconds=offer.limit_s)
    elastic = Elastic(rank, store, roster, offer.fewest, offer.backend, limit, state)
    elastic.group_bytes = offer.group_bytes
    elastic.join(joining)
    return elastic


def check_device(kind: str) -> None:
    """Refuse the reaction to a loss if trainings cannot continue after one.

    Raises:
        InvalidArgument: the ranks should continue, but compute on a GPU.
    """
    choice = resolve(DISTRIBUTED_ON_LOSS)
    if kind != "cpu" and choice != FAIL:
        raise InvalidArgument(
            f"{DISTRIBUTED_ON_LOSS.name} is {choice}, and the device {kind}; trainings continue after a loss only on "
            f"the device cpu: set the device cpu, or {DISTRIBUTED_ON_LOSS.name} to {FAIL}"
        )
