"""Event model of a collective: each message uses named links, and each rank has its own clock. Pure.

It checks the closed forms and writes traces. A message starts as soon as its sender is ready. The messages of a
step share the links that they cross. A rank is ready for its next step when it has sent, received and added.
Unlike the closed forms, it has no barrier between steps, and models individual links instead of counting the messages
that share them.

Source: ours (Hockney's model of a message; GOAL is the text format of LogGOPSim and ATLAHS).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rdukit.collectives.formulas import crossed
from rdukit.collectives.steps import CollectiveAlgorithm, CollectiveStep, Op, steps_of
from rdukit.collectives.topology import Machine, Tier, Wiring, tiers
from rdukit.errors import InvalidArgument

#: A link between ranks: the position of its level, and its ends.
LinkKey = tuple[int, str, int, int]


def simulate(algorithm: CollectiveAlgorithm, op: Op, machine: Machine, ranks: int, size: float) -> float:
    """Return the seconds until the last of ``ranks`` ranks has finished, for a vector of ``size`` bytes.

    Raises:
        InvalidArgument: the machine has too few ranks, or broken links isolate some.
        NotApplicable: the algorithm does not fit.
    """
    used = tiers(machine, ranks)
    clocks = [0.0] * ranks
    for step in steps_of(algorithm, op, used, ranks):
        moves = _moves(step, used, ranks)
        taken = _durations(step, moves, used, size)
        adds = step.adds * size / machine.add_bandwidth
        for done in range(step.count):
            before, clocks = clocks, _advance(clocks, moves, taken, adds)
            gains = [after - was for after, was in zip(clocks, before, strict=True)]
            if max(gains) - min(gains) <= 1e-9 * max(gains):  # steady state: the other steps take the same time
                clocks = [clock + (step.count - 1 - done) * gains[0] for clock in clocks]
                break
    return max(clocks)


def _moves(step: CollectiveStep, used: Sequence[Tier], ranks: int) -> list[tuple[int, int, tuple[LinkKey, ...]]]:
    """Return (sender, receiver, links) of each message of a step."""
    return [(a, b, tuple(_route(used, a, b))) for a in range(ranks) for b in step.partners(a)]


def _route(used: Sequence[Tier], rank: int, target: int) -> Iterator[LinkKey]:
    """Return the links of a message: that of the pair, or the ports out of one unit and into the other; avoid broken
    ones.
    """
    place = crossed(used, rank, target)
    tier = used[place]
    a, b = rank // tier.r, target // tier.r
    if tier.level.wiring is Wiring.SWITCH:
        yield place, "out", a, a
        yield place, "in", b, b
        return
    parent = a // tier.level.size
    pair = (*sorted((a % tier.level.size, b % tier.level.size)),)
    apart = {(link.a, link.b) for link in tier.broken if link.parent == parent}
    if pair not in apart:
        yield place, "pair", a, b
        return
    base = parent * tier.level.size
    for middle in range(tier.n):
        ways = [tuple(sorted((middle, end))) for end in pair]
        if middle not in pair and not apart & set(ways):
            yield place, "pair", a, base + middle
            yield place, "pair", base + middle, b
            return
    outer = used[place + 1]
    away = (rank // outer.r // outer.level.size) * outer.level.size
    other = next(away + unit for unit in range(outer.n) if away + unit != rank // outer.r)
    near = rank // outer.r
    if outer.level.wiring is Wiring.SWITCH:
        yield place + 1, "out", near, near
        yield place + 1, "in", near, near
        return
    yield place + 1, "pair", near, other
    yield place + 1, "pair", other, near


def _durations(
    step: CollectiveStep, moves: Sequence[tuple[int, int, tuple[LinkKey, ...]]], used: Sequence[Tier], size: float
) -> list[float]:
    loads = Counter(link for _, _, links in moves for link in links)
    bytes_each = step.share * size
    found = list[float]()
    for _, _, links in moves:
        # Through a switch, the two ports are one hop; a detour over two pairs is two successive hops.
        latency = sum(used[key[0]].level.latency_s for key in links if key[1] != "in")
        slowest = max(max(1.0, loads[key] / used[key[0]].ports) / used[key[0]].level.bandwidth for key in links)
        found.append(latency + bytes_each * slowest)
    return found


def _advance(
    clocks: Sequence[float], moves: Sequence[tuple[int, int, tuple[LinkKey, ...]]], taken: Sequence[float], adds: float
) -> list[float]:
    after = list(clocks)
    received = set[int]()
    for (sender, receiver, _), seconds in zip(moves, taken, strict=True):
        arrives = clocks[sender] + seconds
        after[sender] = max(after[sender], arrives)
        after[receiver] = max(after[receiver], arrives)
        received.add(receiver)
    return [clock + adds if rank in received else clock for rank, clock in enumerate(after)]


def goal_trace(algorithm: CollectiveAlgorithm, op: Op, machine: Machine, ranks: int, size: int, *, most: int) -> str:
    """Return the collective as a GOAL schedule: sends, receives and additions of each rank, with their dependencies.

    Sizes are whole bytes, at least one; ``calc`` is the nanoseconds of an addition.

    Raises:
        InvalidArgument: the machine has too few ranks, broken links isolate some, or there are more than ``most``
            messages.
        NotApplicable: the algorithm does not fit.
    """
    steps = steps_of(algorithm, op, tiers(machine, ranks), ranks)
    messages = sum(step.count for step in steps) * ranks  # approximate: each rank has one or a few in a step
    if messages > most:
        raise InvalidArgument(
            f"a trace of about {messages} messages is too large; expected at most {most}; choose fewer ranks"
        )
    lines = [list[str]() for _ in range(ranks)]
    last = [list[str]() for _ in range(ranks)]
    tag = number = 0
    for step in steps:
        count, pairs = max(1, round(step.share * size)), [(a, b) for a in range(ranks) for b in step.partners(a)]
        calc = round(step.adds * size / machine.add_bandwidth * 1e9)
        for _ in range(step.count):
            tag += 1
            made = [list[str]() for _ in range(ranks)]
            for a, b in pairs:
                for rank, word, other in ((a, "send", f"to {b}"), (b, "recv", f"from {a}")):
                    number += 1
                    lines[rank].append(f"l{number}: {word} {count}b {other} tag {tag}")
                    lines[rank] += [f"l{number} requires {label}" for label in last[rank]]
                    made[rank].append(f"l{number}")
            for rank in {b for _, b in pairs} if calc else ():
                number += 1
                lines[rank].append(f"l{number}: calc {calc}")
                lines[rank] += [f"l{number} requires {label}" for label in made[rank]]
                made[rank] = [f"l{number}"]
            last = [new or old for new, old in zip(made, last, strict=True)]
    blocks = (f"rank {rank} {{\n" + "".join(f"{line}\n" for line in own) + "}\n" for rank, own in enumerate(lines))
    return f"num_ranks {ranks}\n" + "".join(blocks)
