"""Traces of jobs to simulate: read from the Standard Workload Format, or drawn from a seed (pure except
``read_trace``).
"""

import math
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform.jobs.states import HIGHEST_PRIORITY
from rdukit_platform.scheduler.model import NO_LABELS, Labels

#: Fields of a line of the Standard Workload Format.
SWF_FIELDS: Final = 18
#: Mean and deviation of the logarithm of a drawn job's time. Half of the jobs take at most three minutes, one in 50
#: takes hours.
_LOG_MEAN: Final = math.log(180.0)
_LOG_DEVIATION: Final = 1.5
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 6 * 3600.0
#: Fraction of drawn jobs with a run limit, and the largest ratio of run limit to job time.
_LIMITED: Final = 0.8
_MAX_OF_LIMIT: Final = 3.0
#: Largest number of members of a drawn gang.
_MAX_MEMBERS: Final = 8
#: Label of simulated nodes that names their zone.
ZONE: Final = "zone"


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = r"(?P<{0}>\d+(\.\d+)?)(?P<{0}_unit>[smhd])"
_MAINTENANCE: Final = re.compile(
    rf"(?P<first>\d+)(-(?P<last>\d+))?@{_TIME.format('at')}\+{_TIME.format('length')}"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: arrives at ``at``, seconds since the trace's start, and takes ``runs_s`` on ``tiles`` tiles.

    ``tiles`` are those of all members, in equal parts; ``constraint`` are required labels of its node.
    """

    job_id: str
    tenant_id: str
    tiles: int
    at: float
    runs_s: float
    run_limit_s: float | None = None
    priority: int = 0
    is_preemptible: bool = False
    members: int = 1
    constraint: Labels = NO_LABELS

    @property
    def is_gang(self) -> bool:
        """Return whether it has several members."""
        return self.members > 1

    @property
    def alone_s(self) -> float:
        """Return its duration on an idle system, limited by its run limit."""
        return self.runs_s if self.run_limit_s is None else min(self.runs_s, self.run_limit_s)


#: Used instead of an RDU's number: the whole node.
WHOLE: Final = -1


@dataclass(frozen=True, slots=True)
class Outage:
    """Loss or maintenance of a node, by name, or of an RDU of it, from one time to another."""

    node: str
    at: float
    until: float
    rdu: int = WHOLE


def draw_outages(
    nodes: int, span_s: float, every_s: float, repair_s: float, seed: int, rdus: int = 0
) -> list[Outage]:  # fmt: skip
    """Draw losses of nodes: exponential times of mean ``every_s`` between them, and of mean ``repair_s`` until repair.

    Args:
        rdus: RDUs per node, which break independently; 0: nodes are lost as a whole.
    """
    draw = random.Random(f"{'RDUs' if rdus else 'outages'} {seed}")
    outages = []
    for number, rdu in ((number, rdu) for number in range(nodes) for rdu in (range(rdus) if rdus else (WHOLE,))):
        at = draw.expovariate(1.0 / every_s)
        while at < span_s:
            until = at + draw.expovariate(1.0 / repair_s)
            outages.append(Outage(str(number), at, until, rdu))
            at = until + draw.expovariate(1.0 / every_s)
    return outages


def parse_maintenance(text: str, nodes: int) -> list[Outage]:
    """Parse ``NODES@START+LENGTH`` such as ``0-3@12h+2h``: nodes by number, times from the trace's start (pure).

    Raises:
        InvalidArgument: the text has another form, or there is no such node.
    """
    found = _MAINTENANCE.fullmatch(text)
    if found is None:
        raise InvalidArgument(
            f"maintenance {text[:80]!r} is not valid; expected NODES@START+LENGTH, such as 0-3@12h+2h"
        )
    first, last = int(found["first"]), int(found["last"] or found["first"])
    if not first <= last < nodes:
        raise InvalidArgument(f"maintenance {text[:80]!r}: expected nodes 0 to {nodes - 1}")
    at, length = (float(found[name]) * _UNITS[found[f"{name}_unit"]] for name in ("at", "length"))
    return [Outage(str(number), at, at + length) for number in range(first, last + 1)]


def read_trace(path: Path) -> list[TraceJob]:
    """Read a file in the Standard Workload Format.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: as ``parse_swf``; also if no job is left.
    """
    try:
        jobs = parse_swf(path.read_text(encoding="utf-8", errors="replace").splitlines(), str(path))
    except (FileNotFoundError, IsADirectoryError) as cause:
        raise NotFound(f"there is no trace {path}; --swf takes a file in the Standard Workload Format") from cause
    if not jobs:
        raise InvalidArgument(f"{path} has no job that ran; expected lines of {SWF_FIELDS} numbers with times above 0")
    return jobs


def parse_swf(lines: Iterable[str], name: str = "trace") -> list[TraceJob]:
    """Parse lines of the Standard Workload Format. Jobs without a time, or without processors, are left out.

    A processor is a tile, a user a tenant, and the requested time the run limit.

    Raises:
        InvalidArgument: a line is not of that format; the message names it.
    Source:
        Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers" (JSSPP 1999).
    """
    jobs = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(";"):
            continue
        try:
            fields = [float(field) for field in text.split()]
        except ValueError as cause:
            raise InvalidArgument(f"{name}, line {number}: {cause}; expected {SWF_FIELDS} numbers") from cause
        if len(fields) != SWF_FIELDS or not all(map(math.isfinite, fields)):
            raise InvalidArgument(
                f"{name}, line {number} has {len(fields)} fields; expected {SWF_FIELDS} finite numbers"
            )
        job_number, at, runs_s, allocated, asked, limit_s, user = (fields[i] for i in (0, 1, 3, 4, 7, 8, 11))
        tiles = int(asked if asked > 0 else allocated)
        if runs_s > 0 and tiles > 0 and at >= 0:
            limit = limit_s if limit_s > 0 else None
            jobs.append(TraceJob(f"swf-{job_number:.0f}-{number}", f"user-{user:.0f}", tiles, at, runs_s, limit))
    return jobs


@dataclass(frozen=True, slots=True)
class TraceParts:
    """Parts of drawn jobs that differ from the others, each from 0 to 1."""

    #: Fraction of jobs with the highest priority; the others are preemptible.
    urgent: float = 0.0
    #: Fraction of jobs with several members.
    gangs: float = 0.0
    #: Fraction of gangs that are as large as several nodes.
    wide: float = 0.0
    #: Fraction of jobs that require nodes of one zone.
    constrained: float = 0.0
    zones: int = 0


def zone_labels(number: int, zones: int) -> Labels:
    """Return the labels of the node ``number`` if zones label nodes cyclically (pure); empty without zones."""
    return frozenset({(ZONE, str(number % zones))}) if zones else NO_LABELS


def draw_trace(
    jobs: int, tenants: int, tiles: int, seed: int, load: float = 0.9, nodes: int = 1, parts: TraceParts = TraceParts()
) -> list[TraceJob]:
    """Draw a trace whose load is ``load`` times the capacity of ``nodes`` nodes of ``tiles`` tiles.

    Times are log-normal, and arrivals form a Poisson process. Tiles are powers of two, at most a quarter of all tiles,
    and at most a node's. The n-th tenant's share of jobs is proportional to 1/n. A gang has at least 2 tiles and 2, 4
    or 8 members, at most one per tile. Source: ours, after common traces.
    """
    draw = random.Random(seed)
    widest = max(min(nodes * tiles // 4, tiles), 1)
    sizes = [2**power for power in range(widest.bit_length())]
    shares = [1.0 / (number + 1) for number in range(tenants)]
    # Separate generators, so that one choice does not change the others.
    gang, zone, wide = (random.Random(f"{what} {seed}") for what in ("gangs", "zones", "wide"))
    drawn = []
    for number in range(jobs):
        runs_s = min(max(draw.lognormvariate(_LOG_MEAN, _LOG_DEVIATION), _SHORTEST_S), _LONGEST_S)
        (tenant,) = draw.choices(range(tenants), shares)
        limit_s = runs_s * draw.uniform(1.0, _MAX_OF_LIMIT) if draw.random() < _LIMITED else None
        size, members, constraint = draw.choice(sizes), 1, NO_LABELS
        if parts.gangs and gang.random() < parts.gangs and widest > 1:
            size = max(size, 2)
            members = 2 ** gang.randint(1, min(size, _MAX_MEMBERS).bit_length() - 1)
            if parts.wide and nodes > 1 and wide.random() < parts.wide:
                each = max(tiles // 2, 1)
                members = min(_MAX_MEMBERS, nodes * (tiles // each))
                size = members * each
        if parts.zones and zone.random() < parts.constrained:
            constraint = zone_labels(zone.randrange(parts.zones), parts.zones)
        drawn.append(
            TraceJob(
                f"job-{number}", f"tenant-{tenant + 1}", size, 0.0, runs_s, limit_s, members=members,
                constraint=constraint,
            )
        )  # fmt: skip
    work = sum(job.tiles * job.runs_s for job in drawn)
    rate = jobs * nodes * tiles * load / work if work else 1.0
    at, trace, chance = 0.0, [], random.Random(f"urgent {seed}")
    for job in drawn:
        is_urgent = parts.urgent > 0 and chance.random() < parts.urgent
        priority = HIGHEST_PRIORITY if is_urgent else 0
        trace.append(replace(job, at=at, priority=priority, is_preemptible=parts.urgent > 0 and not is_urgent))
        at += draw.expovariate(rate)
    return trace
