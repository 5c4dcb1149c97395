"""The machine that the figures were taken on, as JSON has it."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from rdukit.files.atomic import write_json_atomic

#: Processor flags that decide which GEMM and row kernels are possible.
FLAGS: Final = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16",
                "amx_int8", "asimd", "bf16", "i8mm", "sve")  # fmt: skip
PEERS: Final = ("torch", "onnxruntime", "transformers", "llama-cpp-python")


def describe_machine(cpuinfo: str | None = None) -> dict[str, Any]:
    """Return the processor's name and flags that matter, usable cores, versions of torch, Python and installed peers.

    ``cpuinfo`` is the text of Linux's /proc/cpuinfo; elsewhere the name comes from ``platform`` and there are no flags.
    """
    info = parse_cpuinfo(_read_cpuinfo() if cpuinfo is None else cpuinfo)
    have = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "processor": info.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in have],
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PEERS if (found := _find_version(name)) is not None},
    }


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measured_limits(threads: int) -> dict[str, Any]:
    """Return memory bandwidth and GEMM speed of this machine, cached or measured now in about three seconds."""
    from rdukit_runtime.engine.machine_limits import load_limits

    return asdict(load_limits(threads))


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a benchmark's figures with the machine's description."""
    write_json_atomic(Path(path), {"machine": describe_machine(), **value})


def parse_cpuinfo(text: str) -> Mapping[str, str]:
    """Parse the fields of the first processor."""
    first = text.split("\n\n", 1)[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _read_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
