"""Limits of this machine: memory bandwidth, GEMM speed by dtype, operator calls. Measured once and cached.

The measurement takes under three seconds. Each figure is the best of several short runs over all routes of the engine
(ATen's GEMM, oneDNN's, bf16 through f32), so a section's route is never faster than the limit's. Other programs lower
the figures. One thread is therefore timed by its own processor time; limits that others disturbed are marked, and
measured again at the next use, and the best figures are kept.

Source: ours.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_json_atomic
from rdukit.settings import home_folder
from rdukit.system.cpu import cpu_signature
from rdukit_runtime.engine.device import CPU, device_numbers
from rdukit_runtime.engine.machine_probe import (
    GEMM_DTYPES,
    Buffers,
    DeviceTimer,
    measure_round,
    others_share,
    read_load,
)

logger = logging.getLogger(__name__)

#: Approximate time of a measurement.
_USUAL_SECONDS: Final = 2.0
_ROUNDS: Final = 2
#: Figures of one round.
_FIGURE_SHARE: Final = 0.09
#: Share of the processors' time, used by others, up to which a measurement counts as undisturbed.
CALM_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Best figures measured on this machine with ``threads`` threads.

    Bandwidths are in GB/s from and to memory (buffers larger than the last cache; a copy counts reads and writes).
    ``gemm`` is in GFLOP/s by dtype (``f32``, ``bf16``, ``int8``); ``operator_s`` is a call of the smallest ATen
    operator in seconds. On a GPU, ``processor`` is the GPU, and all figures refer to it. ``others_share``: fraction of
    all processors' time that other programs used meanwhile, 0 to 1.
    """

    processor: str
    threads: int
    read_gb_s: float
    copy_gb_s: float
    gemm: Mapping[str, float]
    operator_s: float
    others_share: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """True if other programs may have lowered the figures."""
        return self.others_share > CALM_SHARE

    @property
    def memory_gb_s(self) -> float:
        """The larger of both bandwidths: no section can be faster."""
        return max(self.read_gb_s, self.copy_gb_s)


def load_limits(
    threads: int | None = None, seconds: float = _USUAL_SECONDS, device: torch.device = CPU
) -> MachineLimits:
    """Return the cached limits for this processor and torch; measure and cache them if there are none.

    Limits that other programs disturbed are measured again, and the best of each figure is taken. An unreadable file,
    or one of another processor, is replaced. If the file cannot be written, the measurement is still used.

    Args:
        threads: ``None``: torch's number. seconds: approximate duration of a measurement; shorter ones are less exact.
        device: the processor's memory, or a GPU.
    Raises:
        InvalidArgument: fewer than one thread.
    """
    threads = _checked_threads(threads)
    kept = _read_kept().get((processor_name(device), threads))
    if kept is not None and not kept.is_disturbed:
        return kept
    return _keep(measure_limits(threads, seconds, device), [] if kept is None else [kept])


def renew_limits(
    threads: int | None = None, seconds: float = _USUAL_SECONDS, device: torch.device = CPU
) -> MachineLimits:
    """Measure now, and replace the cached limits for this number of threads."""
    return _keep(measure_limits(_checked_threads(threads), seconds, device), [])


def _keep(limits: MachineLimits, former: Sequence[MachineLimits]) -> MachineLimits:
    """Store the limits; each figure is at least that of ``former``, and at least the one stored for fewer threads.

    A program may leave threads unused, so more threads never lower a limit.
    """
    kept = _read_kept()
    fewer = [
        each for (processor, number), each in kept.items() if processor == limits.processor and number < limits.threads
    ]
    for other in (*former, *fewer):
        limits = _at_least(limits, other)
    kept[limits.processor, limits.threads] = limits
    try:
        write_json_atomic(limits_file(), {"limits": [asdict(kept[key]) for key in sorted(kept)]})
    except OSError as cause:
        logger.warning("limits not kept file=%s reason=%s", limits_file(), cause.strerror)
    return limits


def _at_least(limits: MachineLimits, fewer: MachineLimits) -> MachineLimits:
    return replace(
        limits,
        read_gb_s=max(limits.read_gb_s, fewer.read_gb_s),
        copy_gb_s=max(limits.copy_gb_s, fewer.copy_gb_s),
        gemm={dtype: max(limits.gemm[dtype], fewer.gemm[dtype]) for dtype in GEMM_DTYPES},
        operator_s=min(limits.operator_s, fewer.operator_s),
    )


def limits_file() -> Path:
    """Return the file of the limits: one for each kind of processor and each torch."""
    return home_folder() / "machine" / f"{cpu_signature()}-{torch.__version__}.json"


def measure_limits(
    threads: int | None = None, seconds: float = _USUAL_SECONDS, device: torch.device = CPU
) -> MachineLimits:
    """Measure now, with ``threads`` of torch's threads; their number is as before when it ends.

    Everything is measured in two rounds, so that a short disturbance by other programs spoils no figure.

    Raises:
        InvalidArgument: fewer than one thread.
    """
    threads = _checked_threads(threads)
    with _torch_threads(threads), torch.no_grad(), device_numbers(device):
        buffers = Buffers.larger_than_cache(device)
        clock = DeviceTimer(device, is_own_time=threads == 1 and device.type == "cpu")
        before = read_load()
        rounds = [measure_round(buffers, clock, seconds * _FIGURE_SHARE) for _ in range(_ROUNDS)]
    return MachineLimits(
        processor=processor_name(device),
        threads=threads,
        read_gb_s=max(each.read_gb_s for each in rounds),
        copy_gb_s=max(each.copy_gb_s for each in rounds),
        gemm={dtype: max(each.gemm[dtype] for each in rounds) for dtype in GEMM_DTYPES},
        operator_s=min(each.operator_s for each in rounds),
        others_share=round(others_share(before, read_load(), os.cpu_count() or 1), 3),
    )


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(former)


def processor_name(device: torch.device = CPU) -> str:
    """Return the processor's name from the kernel, else its signature; a GPU's name from its driver."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return cpu_signature()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu_signature())


# -- keeping ---------------------------------------------------------------------------------------------------------


def _checked_threads(threads: int | None) -> int:
    if threads is None:
        return torch.get_num_threads()
    if threads < 1:
        raise InvalidArgument(f"{threads} threads; expected 1 or more")
    return threads


def _read_kept() -> dict[tuple[str, int], MachineLimits]:
    """Read the kept limits by processor and number of threads; empty if the file is missing or damaged."""
    try:
        found = [_limits_of(each) for each in json.loads(limits_file().read_bytes())["limits"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as cause:
        logger.warning("limits measured again file=%s reason=%r", limits_file(), cause)
        return {}
    return {(limits.processor, limits.threads): limits for limits in found}


def _limits_of(value: Mapping[str, Any]) -> MachineLimits:
    """Rebuild one.

    Raises:
        ValueError, KeyError, TypeError: a figure is missing, or is not a positive number.
    """
    limits = MachineLimits(
        processor=str(value["processor"]),
        threads=int(value["threads"]),
        read_gb_s=float(value["read_gb_s"]),
        copy_gb_s=float(value["copy_gb_s"]),
        gemm={dtype: float(value["gemm"][dtype]) for dtype in GEMM_DTYPES},
        operator_s=float(value["operator_s"]),
        others_share=float(value.get("others_share", 1.0)),
    )
    figures = (limits.read_gb_s, limits.copy_gb_s, limits.operator_s, *limits.gemm.values())
    needed = (limits.threads, limits.read_gb_s, limits.gemm["f32"])
    if min(needed) <= 0 or not all(0 <= figure < float("inf") for figure in figures):
        raise ValueError(f"figures {figures} are not those of a machine")
    return limits
