"""Facts about the host, with the names that administrators of the real node see: processor, memory, huge pages.

``describe_host`` is pure and parses the kernel's texts; ``read_host`` reads them. Values that the kernel does not
report are left out rather than guessed.

Source: runtime reference 5 (``snconfig show Host all``: keys of the package py-cpuinfo and of ``/proc/meminfo``).
"""

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound, PermissionDenied, RuntimeFault

#: Gigabyte pages, from which the real runtime takes memory for DMA. Source: runtime reference 3.2.
HUGE_PAGES: Final = Path("/sys/kernel/mm/hugepages/hugepages-1048576kB")
HUGE_PAGE_BYTES: Final = 1 << 30

_MEMORY_KEYS: Final = (
    "MemTotal", "MemFree", "MemAvailable", "HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp",
    "Hugepagesize",
)  # fmt: skip
_CACHES: Final = {
    (1, "Data"): "l1_data_cache_size",
    (1, "Instruction"): "l1_instruction_cache_size",
    (2, "Unified"): "l2_cache_size",
    (3, "Unified"): "l3_cache_size",
}
_SIZE_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def describe_host(
    cpuinfo: str, meminfo: str, caches: Mapping[tuple[int, str], str], machine: str, python_version: str
) -> dict[str, str | int]:
    """Facts by name, in the order of the listing.

    Args:
        cpuinfo, meminfo: the texts of the two files in ``/proc``. caches: (level, type) → size such as ``512K``.
    Returns:
        Cache sizes in bytes; memory as the kernel writes it (``24682416 kB``).
    """
    blocks = [dict(_pairs(block)) for block in cpuinfo.split("\n\n") if block.strip()]
    first = blocks[0] if blocks else {}
    facts: dict[str, str | int | None] = {
        "python_version": python_version,
        "arch": _arch(machine),
        "bits": 64 if machine.endswith("64") or machine in {"s390x", "ppc64le"} else 32,
        "count": sum("processor" in block for block in blocks) or os.cpu_count() or 1,
        "arch_string_raw": machine,
        "vendor_id_raw": first.get("vendor_id") or first.get("CPU implementer"),
        "brand_raw": first.get("model name") or first.get("Model"),
        **_frequencies(first),
        **{name: _size(caches.get(key)) for key, name in _CACHES.items()},
        "stepping": _number(first.get("stepping")),
        "model": _number(first.get("model")),
        "family": _number(first.get("cpu family")),
        "flags": " ".join(sorted((first.get("flags") or first.get("Features") or "").split())) or None,
    }
    memory = dict(_pairs(meminfo))
    facts.update({name: memory.get(name) for name in _MEMORY_KEYS})
    return {name: value for name, value in facts.items() if value is not None}


def read_host() -> dict[str, str | int]:
    """Return ``describe_host`` of this machine."""
    return describe_host(
        _read(Path("/proc/cpuinfo")), _read(Path("/proc/meminfo")), _read_caches(), platform.machine(),
        ".".join(map(str, sys.version_info[:3])),
    )  # fmt: skip


def set_huge_pages(count: int, folder: Path = HUGE_PAGES) -> int:
    """Ask the kernel for ``count`` pages of 1 GiB for the whole machine. Returns the number before.

    Raises:
        NotFound: this kernel has no such pages. PermissionDenied: not root, or a container that may not.
        RuntimeFault: the kernel found memory for fewer; the message has their number.
    """
    file = folder / "nr_hugepages"
    if count < 0:
        raise InvalidArgument(f"{count} is not a valid number of huge pages; expected a whole number from 0")
    try:
        before = int(file.read_text())
    except (OSError, ValueError) as cause:
        raise NotFound(
            f"this machine has no huge pages of 1 GiB ({file}: {cause}); emulated devices need none"
        ) from cause
    if os.geteuid() != 0:
        raise PermissionDenied(f"only root may change huge pages (now {before}); run this with sudo")
    try:
        file.write_text(f"{count}\n")
    except OSError as cause:
        raise PermissionDenied(
            f"{file} cannot be written ({cause.strerror}): now {before} pages; run this on the host, not in a container"
        ) from cause
    check_huge_pages(count, int(file.read_text()))
    return before


def check_huge_pages(asked: int, reserved: int) -> None:
    """Compare the requested huge pages with those of the kernel.

    Raises:
        RuntimeFault: they differ.
    """
    if reserved != asked:
        raise RuntimeFault(
            f"the kernel reserved {reserved} of {asked} huge pages of 1 GiB: not enough contiguous free memory; "
            "reserve them at boot (hugepagesz=1G hugepages=N), or ask for fewer",
            huge_pages=reserved,
        )


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = (line.partition(":") for line in text.splitlines())
    return [(key.strip(), value.strip()) for key, sign, value in parts if sign]


def _arch(machine: str) -> str:
    """Return the family's name as py-cpuinfo has it."""
    if re.fullmatch(r"i\d86|x86", machine):
        return "X86_32"
    return {"x86_64": "X86_64", "amd64": "X86_64", "aarch64": "ARM_8", "arm64": "ARM_8", "riscv64": "RISCV_64"}.get(
        machine.lower(), machine.upper()
    )


def _frequencies(block: Mapping[str, str]) -> dict[str, str | None]:
    try:
        megahertz = float(block["cpu MHz"])
    except (KeyError, ValueError):
        return {}
    found: dict[str, str | None] = {"hz_actual_friendly": f"{megahertz / 1000:.4f} GHz"}
    found["hz_actual"] = str(round(megahertz * 1e6))
    if advertised := re.search(r"@ *([\d.]+) *GHz", block.get("model name", "")):
        found["hz_advertised_friendly"] = f"{float(advertised[1]):.4f} GHz"
        found["hz_advertised"] = str(round(float(advertised[1]) * 1e9))
    return dict(sorted(found.items()))


def _size(text: str | None) -> int | None:
    found = re.fullmatch(r"(\d+)([KMG]?)", (text or "").strip())
    return int(found[1]) * _SIZE_UNITS[found[2]] if found else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_caches() -> dict[tuple[int, str], str]:
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(folder / name).strip() for name in ("level", "type", "size"))
        if level.isdigit() and size:
            found[int(level), kind] = size
    return found
