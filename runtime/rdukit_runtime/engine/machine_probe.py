"""The measurements behind the machine's limits: one round of short runs, each figure the best of its runs.

Source: ours.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch

from rdukit_runtime.engine.device import synchronise
from rdukit_runtime.engine.torch_private import int_mm

#: dtypes that have a GEMM figure.
GEMM_DTYPES: Final = ("f32", "bf16", "int8")
#: The longest run of a larger GEMM than the smallest.
_RUN_S: Final = 0.04
_SIZES: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
_MiB: Final = 1 << 20
_MIN_BUFFER_BYTES: Final = 64 * _MiB
_MAX_BUFFER_BYTES: Final = 1024 * _MiB
#: Assumed if the system does not report the size of its last-level cache.
_USUAL_CACHE_BYTES: Final = 32 * _MiB


class Round(NamedTuple):
    """The figures of one round; the fields are those of ``MachineLimits``."""

    read_gb_s: float
    copy_gb_s: float
    gemm: Mapping[str, float]
    operator_s: float


class Buffers(NamedTuple):
    """Two of one size."""

    source: torch.Tensor
    target: torch.Tensor

    @classmethod
    def larger_than_cache(cls, device: torch.device) -> "Buffers":
        """Allocate buffers, each larger than the last cache, as far as memory is free."""
        wanted = min(max(2 * last_cache_bytes(), _MIN_BUFFER_BYTES), _MAX_BUFFER_BYTES)
        if device.type == "cuda":
            wanted = _MAX_BUFFER_BYTES
        count = max(min(wanted, _free_bytes(device) // 8), _MiB) // 4
        return cls(torch.ones(count, device=device), torch.zeros(count, device=device))


def last_cache_bytes() -> int:
    """Size of the largest cache that the first core uses."""
    sizes = [_USUAL_CACHE_BYTES]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith(("K", "M")) and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * (1024 if text.endswith("K") else _MiB))
    return max(sizes)


def measure_round(buffers: Buffers, clock: "DeviceTimer", figure_s: float) -> Round:
    """Measure everything once, each figure for about ``figure_s`` seconds."""
    source, target = buffers
    read_s = min(clock.best_seconds(run, figure_s / 3) for run in (source.sum, lambda: torch.dot(source, source)))
    copy_s = clock.best_seconds(lambda: target.copy_(source), figure_s / 3)
    return Round(
        source.nbytes / read_s / 1e9,
        2 * source.nbytes / copy_s / 1e9,
        {dtype: max(_gemm_gflop_s(route, clock, figure_s) for route in _ROUTES[dtype]) for dtype in GEMM_DTYPES},
        _operator_seconds(clock, figure_s / 9),
    )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


#: Makes a product of two square matrices of a size, ready to run.
_Route = Callable[[int, torch.device], Callable[[], object]]


def _aten_f32(size: int, device: torch.device) -> Callable[[], object]:
    a, b = torch.rand(2, size, size, device=device)
    return lambda: a @ b


def _onednn_f32(size: int, device: torch.device) -> Callable[[], object]:
    a, b = torch.rand(2, size, size, device=device)
    return lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def _aten_bf16(size: int, device: torch.device) -> Callable[[], object]:
    a, b = torch.rand(2, size, size, device=device).bfloat16()
    return lambda: a @ b


def _bf16_through_f32(size: int, device: torch.device) -> Callable[[], object]:
    a, b = torch.rand(2, size, size, device=device).bfloat16()
    return lambda: torch.mm(a.float(), b.float()).bfloat16()


def _aten_int8(size: int, device: torch.device) -> Callable[[], object]:
    a, b = torch.ones(2, size, size, dtype=torch.int8, device=device)
    return lambda: int_mm(a, b.t())


#: By dtype; a device without a dtype lacks its entry.
_ROUTES: Final[Mapping[str, tuple[_Route, ...]]] = {
    "f32": (_aten_f32, _onednn_f32),
    "bf16": (_aten_bf16, _bf16_through_f32),
    "int8": (_aten_int8,),
}


def _gemm_gflop_s(route: _Route, clock: "DeviceTimer", figure_s: float) -> float:
    """Return the best GFLOP/s over sizes, a larger one as long as a run stays short; 0 if this torch
    lacks the route.
    """
    best = 0.0
    ends = time.perf_counter() + figure_s
    for size in _SIZES:
        flops = 2 * size**3
        if time.perf_counter() > ends or (best and flops / (best * 1e9) > _RUN_S):
            break
        try:
            seconds = clock.best_seconds(route(size, clock.device), figure_s / 3)
        except (RuntimeError, AttributeError, NotImplementedError):
            break
        best = max(best, flops / seconds / 1e9)
    return best


def _operator_seconds(clock: "DeviceTimer", budget_s: float) -> float:
    one = torch.ones(1, device=clock.device)

    def hundred() -> None:
        for _ in range(100):
            torch.add(one, one)

    return clock.best_seconds(hundred, budget_s) / 100


class DeviceTimer(NamedTuple):
    """Timer of work on a device, which waits for its end.

    ``is_own_time``: measure the processor time of the calling thread, which does all the work; other programs on its
    core do not count.
    """

    device: torch.device
    is_own_time: bool = False

    def best_seconds(self, run: Callable[[], object], budget_s: float) -> float:
        """Return the shortest of two to 200 runs; ``budget_s`` limits them from the third one on."""
        now = time.thread_time if self.is_own_time else time.perf_counter
        ends = time.perf_counter() + budget_s
        best, count = float("inf"), 0
        while count < 2 or (count < 200 and time.perf_counter() < ends):
            synchronise(self.device)
            began = now()
            run()
            synchronise(self.device)
            best, count = min(best, now() - began), count + 1
        return max(best, 1e-9)


_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Load:
    """Processor time in seconds since some moment: of the whole machine, and of this process."""

    at_s: float
    machine_s: float
    own_s: float


def read_load(stat: Path = _STAT) -> Load | None:
    """Return the load so far; None: the system does not report it."""
    try:
        first = stat.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    # user nice system idle iowait irq softirq steal; guests are counted among user and nice.
    fields = [int(field) for field in first[1:9]]
    busy = sum(fields) - sum(fields[3:5])
    times = os.times()
    return Load(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), times.user + times.system)


def others_share(before: Load | None, after: Load | None, processors: int) -> float:
    """Return the share of all processors' time, 0 to 1, that others used between two moments; 0: unknown."""
    if before is None or after is None or after.at_s <= before.at_s:
        return 0.0
    others = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return min(max(others / ((after.at_s - before.at_s) * processors), 0.0), 1.0)
