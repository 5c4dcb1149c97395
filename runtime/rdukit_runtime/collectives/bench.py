"""Times of collectives on this machine, ours and gloo's in turn in the same processes, with wrong elements counted.

Bandwidths follow nccl-tests: the vector's bytes over the time, and that times the share of a ring's link.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from rdukit.collectives.steps import Op
from rdukit.errors import RuntimeFault
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.planes import collectives_of
from rdukit_runtime.collectives.sums import Adder, Reduction

DTYPES: Final = {"f32": torch.float32, "bf16": torch.bfloat16}
#: Calls before the counted ones, and factor for the number of calls with short vectors.
_WARM: Final = 2
_SHORT_BYTES: Final = 64 << 10
_SHORT_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Vectors of ``sizes`` bytes to measure, the median of ``rounds`` calls of each.

    ``in_place``: whether vectors of an allreduce lie in memory that the ranks share.
    """

    op: Op
    dtype: str
    sizes: Sequence[int]
    rounds: int
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Figures of one size: seconds are medians of rank 0, by the clock and of its processor."""

    size: int
    seconds: float
    cpu_s: float
    gloo_seconds: float
    gloo_cpu_s: float
    #: 10^9 bytes a second.
    algorithm_gb_s: float
    bus_gb_s: float
    #: Number of wrong elements of all ranks.
    wrong: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "ratio": self.gloo_seconds / self.seconds}


def bus_factor(op: Op, ranks: int) -> float:
    """Return the part of a vector that each link of a ring carries (pure)."""
    return {Op.ALLREDUCE: 2 * (ranks - 1) / ranks, Op.BROADCAST: 1.0}.get(op, (ranks - 1) / ranks)


def measure_all(request: BenchRequest, ranks: int) -> list[BenchRow]:
    """Start that many processes, and return their measurements by size.

    Raises:
        RuntimeFault: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
        store, made = str(Path(folder) / "store"), Path(folder) / "rows.json"
        try:
            spawn(_measure, (ranks, request, store, str(made)), ranks)  # type: ignore[no-untyped-call]
        except (ProcessRaisedException, ProcessExitedException) as cause:
            last = str(cause).strip().splitlines()[-1]
            raise RuntimeFault(f"a rank of the measurement failed: {last}") from cause
        return [BenchRow(**row) for row in json.loads(made.read_text())]


def _measure(rank: int, ranks: int, request: BenchRequest, store: str, made: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    group = dist.group.WORLD
    assert group is not None
    ours = collectives_of(group)
    rows = [_measure_size(ours, request, size) for size in request.sizes]
    ours.barrier()
    if rank == 0:
        Path(made).write_text(json.dumps([asdict(row) for row in rows]))
    dist.destroy_process_group()


def _measure_size(ours: Collectives, request: BenchRequest, size: int) -> BenchRow:
    dtype, ranks = DTYPES[request.dtype], ours.size
    count = max(1, size // dtype.itemsize // ranks) * ranks  # each rank has an equal part
    given = [_drawn(rank, count, dtype) for rank in range(ranks)]
    room = (
        ours.allocate(count * dtype.itemsize)
        if request.in_place
        else torch.empty(count * dtype.itemsize, dtype=torch.uint8)
    )
    vector, part = room.view(dtype), torch.empty(count // ranks, dtype=dtype)
    calls = _calls(ours, request.op, given[ours.rank], vector, part)
    rounds = request.rounds * (_SHORT_ROUNDS if size <= _SHORT_BYTES else 1)
    clock: dict[str, list[float]] = {way: [] for way in calls}
    cores: dict[str, list[float]] = {way: [] for way in calls}
    wrong = 0
    for number in range(rounds + _WARM):
        for way, call in calls.items():
            vector.copy_(given[ours.rank])
            ours.barrier()
            began, used = time.perf_counter(), time.process_time()
            call()
            used, took = time.process_time() - used, time.perf_counter() - began
            if number >= _WARM:
                clock[way].append(took)
                cores[way].append(used)
            if way == "ours" and number == 0:
                wrong = _count_wrong(request.op, given, ours.rank, vector, part)
    total = torch.tensor([wrong])
    ours.all_reduce([total], [total])
    seconds = {way: statistics.median(found) for way, found in clock.items()}
    cpu = {way: statistics.median(found) for way, found in cores.items()}
    moved = count * dtype.itemsize
    bandwidth = moved / seconds["ours"] / 1e9
    return BenchRow(
        moved, seconds["ours"], cpu["ours"], seconds["gloo"], cpu["gloo"], bandwidth,
        bandwidth * bus_factor(request.op, ranks), int(total),
    )  # fmt: skip


def _calls(
    ours: Collectives, op: Op, given: torch.Tensor, vector: torch.Tensor, part: torch.Tensor
) -> Mapping[str, Callable[[], object]]:
    """Return a call of each library: of ``vector`` in place, from ``given`` into ``part``, or from that into it."""
    own = given.view(ours.size, -1)[ours.rank].clone()
    match op:
        case Op.ALLREDUCE:
            return {"ours": lambda: ours.all_reduce([vector], [vector]), "gloo": lambda: dist.all_reduce(vector)}
        case Op.REDUCE_SCATTER:
            return {
                "ours": lambda: ours.reduce_scatter(given, part),
                "gloo": lambda: dist.reduce_scatter_single(part, given),
            }
        case Op.ALLGATHER:
            return {
                "ours": lambda: ours.all_gather(own, vector),
                "gloo": lambda: dist.all_gather_single(vector, own),
            }
        case Op.BROADCAST:
            return {"ours": lambda: ours.broadcast([vector]), "gloo": lambda: dist.broadcast(vector, 0)}


def _count_wrong(
    op: Op, given: Sequence[torch.Tensor], rank: int, vector: torch.Tensor, part: torch.Tensor
) -> int:  # fmt: skip
    ranks = len(given)
    if op is Op.BROADCAST:
        return int((vector != given[0]).sum())
    if op is Op.ALLGATHER:
        expected = torch.stack([of.view(ranks, -1)[number] for number, of in enumerate(given)])
        return int((vector.view(ranks, -1) != expected).sum())
    summed = torch.empty_like(vector)
    Adder().combine(given, summed, Reduction.SUM)
    if op is Op.ALLREDUCE:
        return int((vector != summed).sum())
    return int((part != summed.view(ranks, -1)[rank]).sum())


def _drawn(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)
