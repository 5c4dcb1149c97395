"""The system's shared libraries that programs need: read from ELF headers, looked up as the loader would."""

import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
#: Libraries loaded by name at run time, which no header lists.
_LOADED_LATE: Final = ("libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")


@dataclass(frozen=True, slots=True)
class NeededLibraries:
    """The needs that an ELF file states: the loader's path if it is a program, and names of libraries."""

    interpreter: str | None
    names: tuple[str, ...]


def read_needs(path: Path) -> NeededLibraries | None:
    """Return the needs of a 64-bit little-endian ELF file; None for other files and static ones.

    Source: System V ABI, "Program Header" and "Dynamic Section".
    """
    data = path.read_bytes() if path.stat().st_size < (1 << 31) else b""
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, offset + i * size) for i in range(count)]
    loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _PT_LOAD]
    interpreter = next((data[h[2] : h[2] + h[5] - 1].decode() for h in headers if h[0] == _PT_INTERP), None)
    dynamic = next((h for h in headers if h[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return None
    entries = list(_dynamic(data, dynamic[2], dynamic[5]))
    strings = next((_file_offset(loads, value) for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        return None
    names = [data[strings + value : data.index(b"\0", strings + value)] for tag, value in entries if tag == _DT_NEEDED]
    return NeededLibraries(interpreter, tuple(name.decode() for name in names))


def _dynamic(data: bytes, offset: int, size: int) -> Iterator[tuple[int, int]]:
    for place in range(offset, offset + size, 16):
        tag, value = struct.unpack_from("<qQ", data, place)
        if tag == _DT_NULL:
            return
        yield tag, value


def _file_offset(loads: Sequence[tuple[int, int, int]], address: int) -> int | None:
    return next((place + address - start for start, place, size in loads if start <= address < start + size), None)


def find_libraries(programs: Iterable[Path], given: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """Return the system libraries that ``programs`` need, directly and indirectly, as (path in the image, file).

    Libraries among the programs are found by run path. Libraries that this machine lacks are left out, as optional ones
    are. Libraries of ``given`` (name, file) come first, next to the C library.
    """
    known = _loader_cache()
    beside = known["libc.so.6"].parent
    waiting = list(programs)
    own = {path.name for path in waiting}
    found: dict[str, Path] = {}
    names = list(_LOADED_LATE)
    while waiting or names:
        for name in names:
            source = given.get(name) or known.get(name)
            path = str(beside / name if name in given else source)
            if source is not None and name not in own and path not in found:
                found[path] = source.resolve()
                waiting.append(source.resolve())
        names = []
        if waiting:
            needs = read_needs(waiting.pop())
            if needs is not None:
                names = list(needs.names)
                if needs.interpreter is not None:
                    found.setdefault(needs.interpreter, Path(needs.interpreter).resolve())
    return sorted(found.items())


def _loader_cache() -> dict[str, Path]:
    """Return libraries by name from ``ldconfig -p``; the first of a name counts."""
    done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    known: dict[str, Path] = {}
    for line in done.stdout.splitlines()[1:]:
        name, arrow, path = line.strip().partition(" => ")
        if arrow and ("x86-64" in name or "AArch64" in name):
            known.setdefault(name.split()[0], Path(path))
    return known
