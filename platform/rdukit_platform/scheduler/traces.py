"""Traces of jobs to simulate: read from the Standard Workload Format, or drawn by seed (pure but ``read_trace``)."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound

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


def draw_trace(jobs: int, tenants: int, tiles: int, seed: int, load: float = 0.9, nodes: int = 1) -> list[TraceJob]:
    """Draw a trace that asks for ``load`` times what ``nodes`` nodes of ``tiles`` tiles can do.

    Times are log-normal, tiles powers of two up to a quarter of all and to what a node has, arrivals as of a Poisson
    process; the n-th tenant's part of the jobs goes with 1/n. Source: ours, as such traces usually look.
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
    at, trace = 0.0, []
    for job in drawn:
        trace.append(TraceJob(job.job_id, job.tenant_id, job.tiles, at, job.runs_s, job.run_limit_s))
        at += draw.expovariate(rate)
    return trace
