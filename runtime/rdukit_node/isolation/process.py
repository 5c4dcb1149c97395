"""An application's process isolates itself once, permanently, when it opens its first lease of the daemon."""

import errno
import logging
import os
import resource
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit.fence import kernel
from rdukit.settings import home_folder, resolve
from rdukit_node.isolation.model import IsolationMeasure, MeasureState, applied, as_report, cores_of, off, unavailable
from rdukit_node.settings import CORES, DEBUGGABLE, MODE, WRITABLE, node_paths

logger = logging.getLogger(__name__)

#: In ``/proc/self/coredump_filter``: memory shared with other processes (of files or anonymous), and huge pages.
_SHARED_MAPPINGS = (1 << 1) | (1 << 3) | (1 << 6) | (1 << 8)


def apply(tiles: Sequence[int], node_tiles: int) -> dict[str, str]:
    """Isolate this process by the settings. Returns the result. Cannot be undone.

    A further call in the same process only changes the share of cores, to that of all leases so far. A fork inherits
    its parent's isolation, and gets a domain of its own inside the parent's when it opens a lease itself.

    Args:
        tiles: flat numbers of the new lease's tiles.
        node_tiles: tiles of the whole node.
    Returns:
        ``mode`` and one text a part, beginning with ``applied``, ``unavailable`` or ``off``.
    Raises:
        RuntimeFault: the mode is strict and a part could not be applied.
        InvalidArgument: a setting is not valid, or names a folder that does not exist.
    Source: ours. That applications have exclusive resources is the vendor's (runtime reference 3.2).
    """
    mode = resolve(MODE)
    if mode == "off":
        return {"mode": mode}
    state = _state_of(os.getpid())
    with state.lock:
        if not state.parts:
            state.parts = tuple(_apply_once(_writable_folders()))
        parts = (*state.parts, _bind_cores(state, tiles, node_tiles) if resolve(CORES) else off("cores"))
    if mode == "strict" and (missing := [part for part in parts if part.state is MeasureState.UNAVAILABLE]):
        raise RuntimeFault(
            f"isolation is strict, but {', '.join(f'{part.name} is {part}' for part in missing)}; provide the missing "
            f"parts, or set ${MODE.variable}=auto",
            **as_report(parts),
        )
    report = {"mode": mode, **as_report(parts)}
    logger.debug("event=isolation %s", " ".join(f"{name}={text!r}" for name, text in report.items()))
    return report


def leased_cores(tiles: Sequence[int], node_tiles: int) -> list[int]:
    """Return the host's cores that belong to a lease's tiles, even if the process is not bound to them.

    Args: those of ``apply``.
    """
    return cores_of(_state_of(os.getpid()).allowed_cores, tiles, node_tiles)


class _ProcessState:
    """The isolation applied to one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.parts: tuple[IsolationMeasure, ...] = ()
        #: Cores that the process might use before, and tiles of all its leases so far.
        self.allowed_cores = os.sched_getaffinity(0)
        self.tiles: set[int] = set()


@lru_cache(maxsize=1)
def _state_of(pid: int) -> _ProcessState:
    """Return the state of this process: a fork has another number, and so starts afresh."""
    return _ProcessState()


def _apply_once(writable: tuple[Path, ...]) -> Iterator[IsolationMeasure]:
    threads = len(os.listdir("/proc/self/task")) - 1
    yield _attempt("no_new_privileges", kernel.set_no_new_privileges)
    yield _enter_domain(writable, threads)
    yield _attempt("core_dumps", _leave_no_core_dumps)
    if resolve(DEBUGGABLE):
        yield off("hidden")
    else:
        yield _attempt("hidden", lambda: kernel.set_dumpable(False))


def _attempt(name: str, action: Callable[[], str | None]) -> IsolationMeasure:
    try:
        return applied(name, action() or "")
    except OSError as error:
        return unavailable(name, error.strerror or error)


def _enter_domain(writable: tuple[Path, ...], threads: int) -> IsolationMeasure:
    try:
        abi = kernel.landlock_abi()
    except OSError as error:
        known = {
            errno.ENOSYS: "the kernel has no Landlock (it came with Linux 5.13)",
            errno.EOPNOTSUPP: "Landlock is switched off; add it to the kernel's lsm= parameter",
        }
        return unavailable("landlock", known.get(error.errno or 0, error.strerror))
    if abi < kernel.ABI_REFER:
        return unavailable("landlock", "the kernel's Landlock (ABI 1) would forbid moving files across folders")
    try:
        kernel.enter_landlock_domain(abi, writable)
    except OSError as error:
        reason = "16 Landlock domains are nested already" if error.errno == errno.E2BIG else error.strerror
        return unavailable("landlock", reason)
    text = f"a separate domain (ABI {abi})"
    if writable:
        text += f", writing only beneath {' '.join(map(str, writable))}"
    if threads and abi < kernel.ABI_ALL_THREADS:
        text += f"; {threads} earlier threads are outside it"
    return applied("landlock", text)


def _leave_no_core_dumps() -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The limit does not bind a collector to which the kernel pipes dumps, so device memory is left out of dumps.
    path = Path("/proc/self/coredump_filter")
    try:
        path.write_text(f"{int(path.read_text(), 16) & ~_SHARED_MAPPINGS:#x}")
    except OSError as error:
        return f"no files; collectors of core dumps are not limited: {error.strerror}"
    return "none, and no device memory for a collector of core dumps"


def _writable_folders() -> tuple[Path, ...]:
    wanted = [Path(text).expanduser().absolute() for text in resolve(WRITABLE).split(":") if text]
    if not wanted:
        return ()
    if missing := [folder for folder in wanted if not folder.is_dir()]:
        raise InvalidArgument(
            f"{WRITABLE.name} names {missing[0]}, which is not a folder; create it, or name existing folders"
        )
    own = (home_folder(), Path(tempfile.gettempdir()), node_paths().sn_log.parent, Path("/dev"), Path("/proc/self"))
    return tuple(_unique([*wanted, *(folder for folder in own if folder.is_dir())]))


def _unique(folders: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(folders))


def _bind_cores(state: _ProcessState, tiles: Sequence[int], node_tiles: int) -> IsolationMeasure:
    state.tiles.update(tiles)
    cores = cores_of(state.allowed_cores, state.tiles, node_tiles)
    try:
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), cores)
            except ProcessLookupError:
                continue  # it ended meanwhile
    except OSError as error:
        return unavailable("cores", error.strerror)
    return applied("cores", ",".join(map(str, cores)))
