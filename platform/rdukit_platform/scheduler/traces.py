"""Traces of jobs to simulate: read from the Standard Workload Format, or drawn by seed (pure but ``read_trace``)."""

import math
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform.jobs.states import HIGHEST_PRIORITY

#: Fields of a line of the Standard Workload Format.
SWF_FIELDS: Final = 18
#: A drawn job's time: its logarithm's mean and deviation. Half of the jobs take three minutes at most, one in 50 hours.
_LOG_MEAN: Final = math.log(180.0)
_LOG_DEVIATION: Final = 1.5
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 6 * 3600.0
#: Part of the drawn jobs that have a run limit, and how many times the job's time it is at most.
_LIMITED: Final = 0.8
_MOST_OF_LIMIT: Final = 3.0


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = r"(?P<{0}>\d+(\.\d+)?)(?P<{0}_unit>[smhd])"
_MAINTENANCE: Final = re.compile(
    rf"(?P<first>\d+)(-(?P<last>\d+))?@{_TIME.format('at')}\+{_TIME.format('length')}"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: comes at ``at``, seconds since the trace's begin, and takes ``runs_s`` on ``tiles`` tiles."""

    job_id: str
    tenant_id: str
    tiles: int
    at: float
    runs_s: float
    run_limit_s: float | None = None
    priority: int = 0
    is_preemptible: bool = False

    @property
    def alone_s(self) -> float:
        """Return how long it takes where nothing is in its way."""
        return self.runs_s if self.run_limit_s is None else min(self.runs_s, self.run_limit_s)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node, by its name, is lost at a time, or goes into maintenance, and is back at another."""

    node: str
    at: float
    until: float


def draw_outages(nodes: int, span_s: float, every_s: float, repair_s: float, seed: int) -> list[Outage]:
    """Draw when nodes are lost: each after an exponential time of mean ``every_s``, for one of mean ``repair_s``."""
    draw = random.Random(f"outages {seed}")
    outages = []
    for number in range(nodes):
        at = draw.expovariate(1.0 / every_s)
        while at < span_s:
            until = at + draw.expovariate(1.0 / repair_s)
            outages.append(Outage(str(number), at, until))
            at = until + draw.expovariate(1.0 / every_s)
    return outages


def parse_maintenance(text: str, nodes: int) -> list[Outage]:
    """Parse ``NODES@START+LENGTH`` such as ``0-3@12h+2h``: nodes by their numbers, times from the trace's begin (pure).

    Raises:
        InvalidArgument: it is not that, or there is no such node.
    """
    found = _MAINTENANCE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"maintenance {text[:80]!r} is not legal; legal: NODES@START+LENGTH, such as 0-3@12h+2h")
    first, last = int(found["first"]), int(found["last"] or found["first"])
    if not first <= last < nodes:
        raise InvalidArgument(f"maintenance {text[:80]!r}: there are nodes 0 to {nodes - 1}")
    at, length = (float(found[name]) * _UNITS[found[f"{name}_unit"]] for name in ("at", "length"))
    return [Outage(str(number), at, at + length) for number in range(first, last + 1)]


def read_trace(path: Path) -> list[TraceJob]:
    """Read a file in the Standard Workload Format.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: as ``parse_swf``.
    """
    try:
        return parse_swf(path.read_text(encoding="utf-8", errors="replace").splitlines(), str(path))
    except (FileNotFoundError, IsADirectoryError) as cause:
        raise NotFound(f"there is no trace {path}; --swf takes a file in the Standard Workload Format") from cause


def parse_swf(lines: Iterable[str], name: str = "trace") -> list[TraceJob]:
    """Parse lines of the Standard Workload Format. Jobs without a time, or without processors, are left out.

    A processor is a tile, a user a tenant, and the requested time the run limit.

    Raises:
        InvalidArgument: a line is not that format; the message names it.
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
            raise InvalidArgument(f"{name}, line {number}: {cause}; legal: {SWF_FIELDS} numbers") from cause
        if len(fields) != SWF_FIELDS or not all(map(math.isfinite, fields)):
            raise InvalidArgument(f"{name}, line {number} has {len(fields)} fields; legal: {SWF_FIELDS} finite numbers")
        job_number, at, runs_s, allocated, asked, limit_s, user = (fields[i] for i in (0, 1, 3, 4, 7, 8, 11))
        tiles = int(asked if asked > 0 else allocated)
        if runs_s > 0 and tiles > 0 and at >= 0:
            limit = limit_s if limit_s > 0 else None
            jobs.append(TraceJob(f"swf-{job_number:.0f}-{number}", f"user-{user:.0f}", tiles, at, runs_s, limit))
    return jobs


def draw_trace(
    jobs: int, tenants: int, tiles: int, seed: int, load: float = 0.9, nodes: int = 1, urgent: float = 0.0
) -> list[TraceJob]:
    """Draw a trace that asks for ``load`` times what ``nodes`` nodes of ``tiles`` tiles can do.

    Times are log-normal, tiles powers of two up to a quarter of all and to what a node has, arrivals as of a Poisson
    process; the n-th tenant's part of the jobs goes with 1/n. The part ``urgent`` of the jobs has the highest priority,
    and then the others are preemptible. Source: ours, as such traces usually look.
    """
    draw = random.Random(seed)
    widest = max(min(nodes * tiles // 4, tiles), 1)
    sizes = [2**power for power in range(widest.bit_length())]
    shares = [1.0 / (number + 1) for number in range(tenants)]
    drawn = []
    for number in range(jobs):
        runs_s = min(max(draw.lognormvariate(_LOG_MEAN, _LOG_DEVIATION), _SHORTEST_S), _LONGEST_S)
        (tenant,) = draw.choices(range(tenants), shares)
        limit_s = runs_s * draw.uniform(1.0, _MOST_OF_LIMIT) if draw.random() < _LIMITED else None
        drawn.append(TraceJob(f"job-{number}", f"tenant-{tenant + 1}", draw.choice(sizes), 0.0, runs_s, limit_s))
    work = sum(job.tiles * job.runs_s for job in drawn)
    rate = jobs * nodes * tiles * load / work if work else 1.0
    at, trace, chance = 0.0, [], random.Random(f"urgent {seed}")
    for job in drawn:
        is_urgent = urgent > 0 and chance.random() < urgent
        trace.append(
            TraceJob(
                job.job_id, job.tenant_id, job.tiles, at, job.runs_s, job.run_limit_s,
                HIGHEST_PRIORITY if is_urgent else 0, urgent > 0 and not is_urgent,
            )
        )  # fmt: skip
        at += draw.expovariate(rate)
    return trace
