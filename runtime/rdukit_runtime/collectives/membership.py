"""Decisions of a group of ranks that lost members: who continues, and what is computed again. Pure.

Two parts of a group that cannot reach each other must not both continue. A part needs more than half of the members
that are not proven dead. With exactly half, a part needs the lowest of these members. Source: ours.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

#: Ranks that the name of a group shows.
_SHOWN: Final = 8
#: Host and port.
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RegroupDecision:
    """Members that continue, by their ranks in the launch, and lost members.

    ``refusal``: reason for stopping; empty: they continue. ``addresses``: of the stores of new processes, by the lost
    ranks whose places they take.
    """

    name: str
    members: tuple[int, ...]
    lost: tuple[int, ...]
    refusal: str = ""
    addresses: Mapping[int, Address] = field(default_factory=dict)

    @property
    def replaced(self) -> tuple[int, ...]:
        """Return the lost ranks that have a new process."""
        return tuple(sorted(self.addresses))

    @property
    def text(self) -> str:
        """Return the form in which the members send it to each other."""
        return json.dumps(asdict(self))


def read_addresses(held: Mapping[str, Sequence[object]]) -> dict[int, Address]:
    """Return addresses by rank from JSON."""
    return {int(rank): (str(host), int(str(port))) for rank, (host, port) in held.items()}


def read_decision(text: str) -> RegroupDecision:
    """Return the decision in a text of ``RegroupDecision.text``."""
    held = json.loads(text)
    return RegroupDecision(
        held["name"], tuple(held["members"]), tuple(held["lost"]), held["refusal"], read_addresses(held["addresses"])
    )


def decide(
    name: str, former: Collection[int], here: Collection[int], dead: Collection[int], fewest: int,
    came: Mapping[int, Address] | None = None,
) -> RegroupDecision:  # fmt: skip
    """Decide which ranks continue.

    Args:
        former: members of the group that broke. here: members that have come. dead: members whose process has ended.
        fewest: smallest number of ranks that may continue. came: addresses of new processes for lost ranks; they count
            for ``fewest``, but not for the majority.
    """
    lost = tuple(sorted(set(former) - set(here)))
    addresses = {rank: address for rank, address in sorted((came or {}).items()) if rank in lost}
    members = tuple(sorted({*here, *addresses}))
    alive = sorted(set(former) - (set(dead) - set(here)))
    is_half_with_lowest = 2 * len(here) == len(alive) and alive[0] in here
    refusal = ""
    if len(members) < fewest:
        refusal = f"{count_ranks(len(members))} left, but distributed.fewest_ranks is {fewest}"
    elif 2 * len(here) <= len(alive) and not is_half_with_lowest:
        away = name_ranks([rank for rank in alive if rank not in here])
        refusal = f"{away} may still run but cannot be reached, and {count_ranks(len(here))} are not a majority"
    return RegroupDecision(name, members, lost, refusal, addresses)


@dataclass(frozen=True, slots=True)
class RankProgress:
    """A member's progress: number of finished steps, and whether the means of the next one are complete."""

    steps: int
    is_averaged: bool

    @property
    def text(self) -> str:
        """Return the form in which the members send it to each other."""
        return f"{self.steps} {int(self.is_averaged)}"


def read_rank_progress(text: str) -> RankProgress:
    """Return the progress in a text of ``RankProgress.text``."""
    steps, is_averaged = text.split()
    return RankProgress(int(steps), is_averaged == "1")


#: Progress of a new process, which takes the foremost member's parameters.
NEW: Final = RankProgress(-1, False)


def must_average_again(progress: Sequence[RankProgress], mine: RankProgress) -> bool:
    """Return whether a member averages its step again with the remaining ones.

    A member begins the next step only after all have the means of this one. So a member that is behind has the means;
    and if a foremost member lacks them, no foremost member has used its own. A new process computes the gradients of
    the foremost members' step, so these always average it again.
    """
    foremost = max(each.steps for each in progress)
    if mine.steps < foremost:
        return False
    return NEW in progress or not all(each.is_averaged for each in progress if each.steps == foremost)


def is_at_step(progress: Sequence[RankProgress], steps: int) -> bool:
    """Return whether the foremost members have finished ``steps`` steps, as the offer to a new process said.

    A late member may be further than those that made the offer.
    """
    return max(each.steps for each in progress) == steps


def choose_sender(progress: Sequence[RankProgress]) -> int:
    """Return the place of the member whose parameters new processes take: the first of the foremost."""
    foremost = max(each.steps for each in progress)
    return next(place for place, each in enumerate(progress) if each.steps == foremost)


@dataclass(frozen=True, slots=True)
class GroupRanks:
    """The ranks of a group, as their launch numbers them, by their place in the group; ``launched``: ranks in all."""

    numbers: tuple[int, ...]
    launched: int

    @property
    def described(self) -> str:
        """The group, for people."""
        if len(self.numbers) == self.launched:
            return f"all {count_ranks(self.launched)}"
        shown = list(map(str, self.numbers))
        if len(shown) > _SHOWN:
            return f"the group of {len(shown)} ranks {', '.join(shown[: _SHOWN - 2])}, …, {shown[-1]}"
        return f"the group of {name_ranks(self.numbers)}"

    def name(self, places: Sequence[int]) -> str:
        """Return ranks of the group with the group, for people."""
        whole = str(self.launched) if len(self.numbers) == self.launched else self.described
        return f"{name_ranks(self.at(places))} of {whole}"

    def at(self, places: Sequence[int]) -> list[int]:
        """Return the launch's numbers of places in the group."""
        return [self.numbers[place] for place in places]


def all_ranks(count: int) -> GroupRanks:
    """Return the group of all ranks of a launch."""
    return GroupRanks(tuple(range(count)), count)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks for people."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def first_line(cause: Exception) -> str:
    """Return the first line of an error, or its kind."""
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def count_ranks(count: int) -> str:
    """Return a number of ranks for people."""
    return "1 rank" if count == 1 else f"{count} ranks"
